"""What single headers of a client's frames say: that they are there, heart-beats, and those that travel with a record."""

from __future__ import annotations

from typing import Final

from broker_core.errors import ClientError
from broker_core.headers import encode
from broker_core.protocols.stomp.destinations import canonical
from broker_core.protocols.stomp.heads import Headers
from broker_core.protocols.stomp.messages import NOT_TRAVELLING

LEAST_BEAT_MS: Final = 1_000
"""Neither promised nor asked for oftener."""
MOST_BEAT_MS: Final = 24 * 3_600_000


def needed(headers: dict[str, str], name: str) -> str:
    """The value of a header. ClientError bad_command when it is missing."""
    value = headers.get(name, "")
    if not value:
        raise ClientError(
            "bad_command", f"The header {name} is missing.", f"Give it: {name}:...", header=name
        )
    return value


def beats(text: str) -> tuple[int, int]:
    """How often the broker says something and hears something, ms; 0 for never."""
    parts = text.split(",")
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and len(part) < 16 for part in parts):
        raise ClientError(
            "bad_command",
            f"heart-beat {text[:40]!r} isn't two numbers.",
            "Give milliseconds, as 10000,10000.",
            header="heart-beat",
        )
    client_says, client_wants = (min(int(part), MOST_BEAT_MS) for part in parts)
    return (
        max(client_wants, LEAST_BEAT_MS) if client_wants else 0,
        max(client_says, LEAST_BEAT_MS) if client_says else 0,
    )


def lines_of(headers: Headers, topic: str) -> bytes:
    """The headers that travel with a record. In other words than ours its destination is the first of them."""
    try:
        return headers.travelling
    except AttributeError:
        pass
    travelling = [item for item in headers.items() if item[0] not in NOT_TRAVELLING]
    destination = headers["destination"]
    if destination != canonical(topic):
        travelling.insert(0, ("destination", destination))
    headers.travelling = encode(travelling) if travelling else b""
    return headers.travelling
