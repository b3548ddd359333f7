"""Mail over SMTP with one deadline for the whole call; see `bounded_call`."""

from __future__ import annotations

import smtplib
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.mail import DNS_NAME, EmailMessage, get_connection
from django.core.mail.backends.smtp import EmailBackend

from console.services.bounded_call import CallSockets


class _BoundedSmtp(smtplib.SMTP):
    """SMTP session whose connection `CallSockets` can shut down."""

    def __init__(self, sockets: CallSockets, *args: Any, **options: Any) -> None:
        self._sockets = sockets
        super().__init__(*args, **options)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return self._sockets.connect(host, port)


class _BoundedSmtpSsl(_BoundedSmtp, smtplib.SMTP_SSL):
    """SMTP session over TLS from the first byte, whose connection `CallSockets` can shut down."""

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        plain = super()._get_socket(host, port, timeout)
        return self.context.wrap_socket(plain, server_hostname=host)


class _BoundedBackend(EmailBackend):
    """Django's SMTP backend, limited by the deadline of one call."""

    def __init__(self, sockets: CallSockets) -> None:
        super().__init__()
        self._sockets = sockets

    @property
    def connection_class(  # type: ignore[override]  # Django only calls it
        self,
    ) -> Callable[..., smtplib.SMTP]:
        return partial(_BoundedSmtpSsl if self.use_ssl else _BoundedSmtp, self._sockets)


def send(sockets: CallSockets, message: EmailMessage) -> None:
    """Send a message through the configured mail server.

    Raises:
        OSError: the connection failed or the deadline passed.
        OperatorError: call_refused, when too many look-ups hang.
        smtplib.SMTPException: the server refused the message.
    """
    backend = get_connection()
    if isinstance(backend, EmailBackend):
        sockets.look_up("", DNS_NAME.get_fqdn)  # the name of this machine; Django stores it
        backend = _BoundedBackend(sockets)
    message.connection = backend
    message.send()
