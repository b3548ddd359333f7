"""Validation of webhook addresses: http or https, to a host that the installation declares.

Pure except for settings.
"""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from django.conf import settings

from broker_core.errors import OperatorError
from console.services.actions.variables import has_reference


def check_address(text: str) -> SplitResult:
    """Return the parsed address.

    Raises:
        OperatorError: `webhook_refused` unless SLUICE_WEBHOOK_HOSTS has its host (or host:port).
    """
    try:
        address = urlsplit(text)
        host, port = address.hostname or "", address.port
    except ValueError:
        raise _refused(f"{text[:100]!r} isn't an address.") from None
    if (
        address.scheme not in ("http", "https")
        or not host
        or address.username is not None
        or has_reference(text)
    ):
        raise _refused(f"{text[:100]!r} isn't an http or https address without a user.")
    declared = [one.lower() for one in settings.SLUICE_WEBHOOK_HOSTS]
    written = f"[{host}]" if ":" in host else host
    names = (
        f"{written}:{port or (443 if address.scheme == 'https' else 80)}",
        *((written,) if port is None else ()),
    )
    if not any(name in declared for name in names):
        raise _refused(f"{written[:100]} isn't a declared host.")
    if any(one <= " " or one == "\x7f" for one in text):
        raise _refused("An address has no spaces or control characters.")
    return address


def _refused(sentence: str) -> OperatorError:
    return OperatorError(
        "webhook_refused",
        sentence,
        "Declare hosts in SLUICE_WEBHOOK_HOSTS, as name, name:port or [::1]:port.",
    )
