"""Addresses of transports: `tcp://host:port`, `ws://host:port/path`, and with TLS `tcps://…`, `wss://…`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from broker_core.errors import OperatorError

DEFAULT_PORTS = {"tcp": 9007, "tcps": 9007, "ws": 9008, "wss": 443}


class Address(NamedTuple):
    """Where a transport listens."""

    scheme: str
    host: str
    port: int
    text: str

    @property
    def secure(self) -> bool:
        return self.scheme in ("tcps", "wss")


def parse_address(text: str) -> Address:
    """The address in a text; OperatorError bad_address when it isn't one."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _bad(text) from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise _bad(text)
    return Address(parts.scheme, parts.hostname, port or DEFAULT_PORTS[parts.scheme], text)


def parse_addresses(texts: str | Sequence[str]) -> tuple[Address, ...]:
    """One address or several, to be tried in turn."""
    found = tuple(map(parse_address, [texts] if isinstance(texts, str) else texts))
    if not found:
        raise OperatorError(
            "bad_address", "A client needs at least one address.", "Give it tcp://127.0.0.1:9007."
        )
    return found


def _bad(text: str) -> OperatorError:
    return OperatorError(
        "bad_address",
        f"{text[:200]!r} isn't the address of a transport.",
        "Write tcp://host:9007 or ws://host:9008/, with TLS tcps://host:9007 or wss://host/.",
    )
