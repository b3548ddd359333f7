"""Mail whose connection can be given up, as `bounded_call` gives up calls of other hosts."""

from __future__ import annotations

import smtplib
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.mail import EmailMessage, get_connection
from django.core.mail.backends.smtp import EmailBackend

from console.services.bounded_call import CallSockets


class _BoundedSmtp(smtplib.SMTP):
    """An SMTP session on one of a call's sockets."""

    def __init__(self, sockets: CallSockets, *args: Any, **options: Any) -> None:
        self._sockets = sockets
        super().__init__(*args, **options)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return self._sockets.connect(host, port)


class _BoundedSmtpSsl(_BoundedSmtp, smtplib.SMTP_SSL):
    """An SMTP session over TLS from the beginning, on one of a call's sockets."""

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        plain = super()._get_socket(host, port, timeout)
        return self.context.wrap_socket(plain, server_hostname=host)


class _BoundedBackend(EmailBackend):
    """Django's SMTP backend within one call's deadline."""

    def __init__(self, sockets: CallSockets) -> None:
        super().__init__()
        self._sockets = sockets

    @property
    def connection_class(  # type: ignore[override]  # Django only calls it
        self,
    ) -> Callable[..., smtplib.SMTP]:
        return partial(_BoundedSmtpSsl if self.use_ssl else _BoundedSmtp, self._sockets)


def send(sockets: CallSockets, message: EmailMessage) -> None:
    """Send a message by the mail server that is set. Raises OSError, or smtplib.SMTPException."""
    backend = get_connection()
    message.connection = _BoundedBackend(sockets) if isinstance(backend, EmailBackend) else backend
    message.send()
