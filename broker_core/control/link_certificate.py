"""Certificate of the control link: reloaded when its files change, and reported before it expires."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509

from broker_core.access.tls import bad_certificate_error, make_server_context
from broker_core.config import TlsSettings
from broker_core.errors import OperatorError

WARN_DAYS: Final = 14
"""Days before expiry from which on the log warns."""
RETRY_DELAY_S: Final = 86_400.0
"""Minimum time between two log lines with the same warning."""
_DAY_S: Final = 86_400
log = structlog.get_logger("sluice.control")


class LinkCertificate:
    """Certificate and key of the control link. `context` is used for the next handshake."""

    def __init__(self, settings: TlsSettings, now: Callable[[], float] = time.time) -> None:
        """Load the certificate and its key. `now` returns seconds UTC.

        Raises:
            OperatorError: bad_certificate.
        """
        self._settings, self._now = settings, now
        self._stamp = self._read_stamp()
        self._last_warning = ("", 0.0)
        self.context, self._expires_at = _read(settings)
        self._warn_of_expiry()

    def reload_if_changed(self) -> None:
        """Load renewed files. If they are unusable or incomplete, the present certificate stays in use."""
        stamp = self._read_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self.context, self._expires_at = _read(self._settings)
            except OperatorError as problem:
                log.error("control_certificate_unusable", why=problem.sentence, fix=problem.fix)
            else:
                log.info("control_certificate_read", ends=_utc(self._expires_at))
                self._last_warning = ("", 0.0)
        self._warn_of_expiry()

    def _warn_of_expiry(self) -> None:
        """Log a certificate that has expired or expires soon, at most once a day."""
        now = self._now()
        event = (
            "control_certificate_expired"
            if now >= self._expires_at
            else "control_certificate_expires"
            if now >= self._expires_at - WARN_DAYS * _DAY_S
            else ""
        )
        before, at = self._last_warning
        if not event or (event == before and now - at < RETRY_DELAY_S):
            return
        self._last_warning = (event, now)
        log.warning(
            event,
            ends=_utc(self._expires_at),
            certificate=self._settings.certificate,
            fix=(
                "Replace the files with a new certificate and its key; the broker loads them without a "
                "restart. Consoles reject an expired certificate."
            ),
        )

    def _read_stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Return inode, modification time and size of both files; zeros for a missing one."""
        found = []
        for name in (self._settings.certificate, self._settings.key):
            try:
                status = Path(name).stat()
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found)


def _read(settings: TlsSettings) -> tuple[ssl.SSLContext, float]:
    """Return a TLS context, and when its certificate expires, seconds UTC. Raises OperatorError."""
    context = make_server_context(settings)
    try:
        certificate = x509.load_pem_x509_certificate(Path(settings.certificate).read_bytes())
    except (OSError, ValueError) as problem:  # replaced meanwhile, or in a form that only OpenSSL accepts
        raise bad_certificate_error(settings, problem) from None
    return context, certificate.not_valid_after_utc.timestamp()


def _utc(seconds: float) -> str:
    """Return a time in seconds UTC as text."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
