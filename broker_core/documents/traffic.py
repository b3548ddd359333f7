"""What a broker journals each second about the clients for whom something waits, on `$SLUICE.traffic`: what a policy would
have had to judge, so that another one can be tried on it afterwards (`pipeline/jobs/backtest.py`).

Clients that keep up aren't in it: no rule sees anything of them. The first second in which nothing waits any more is. A
document holds some hundreds of rows; their figures are packed by column, since most of them hardly change from row to row.
"""

from __future__ import annotations

import base64
import binascii
import sys
import zlib
from array import array
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from broker_core.documents.base import Document, Moment


class Who(NamedTuple):
    """Whose row it is. `topic` is of its subscription, if it has just one."""

    name: str
    transport: str
    user: str
    connected: int
    topic: str


class Figures(NamedTuple):
    """One look at a client. Moments are ms UTC, 0 is none; sizes are bytes."""

    at: int
    offlined: int
    """1 from the decision to offline it until it is live again."""
    memory: int
    disk: int
    messages: int
    """In memory."""
    matched_messages: int
    matched_bytes: int
    """All that was for it since its logon, bytes of bodies."""
    acknowledged_bytes: int
    """The same, of what its peer has."""
    taken_bytes: int
    """Of its connection that its peer has acknowledged since the logon."""
    owed_messages: int
    owed_bytes: int
    oldest_at: int
    unacked_at: int
    blocked_since: int
    lump_bytes: int
    unjournaled: int
    """Messages of what it is owed that no bookmark brings back."""
    subscriptions: int


WIDTH: Final = len(Figures._fields)
MOST_ROWS: Final = 256
"""Of one document: packing it takes a third of a millisecond."""
MOST_UNPACKED: Final = 4 * 1024 * 1024


class TrafficEntry(Document, frozen=True, kw_only=True):
    """Looks at clients for whom something waits."""

    at: Moment
    rows: int
    left_out: Annotated[
        int, Meta(description="Further looks that weren't recorded, for there were too many.")
    ] = 0
    packed: Annotated[
        str,
        Meta(
            description="Base64 of a deflated JSON list of whose the rows are, a zero byte, and 64-bit numbers by column."
        ),
    ]


def pack(at_ms: int, whose: list[Who], figures: array[int], left_out: int) -> TrafficEntry:
    """The document of rows whose figures lie one after the other."""
    if sys.byteorder == "big":
        figures = array("q", figures)
        figures.byteswap()
    columns = b"".join(figures[column::WIDTH].tobytes() for column in range(WIDTH))
    text = msgspec.json.encode(whose)
    packed = base64.b64encode(zlib.compress(text + b"\0" + columns, 1)).decode()
    return TrafficEntry(at=at_ms, rows=len(whose), left_out=left_out, packed=packed)


def unpack(entry: TrafficEntry) -> tuple[list[Who], list[array[int]]]:
    """Whose the rows are, and the columns of Figures. ValueError for what isn't one."""
    try:
        inflating = zlib.decompressobj()
        plain = inflating.decompress(base64.b64decode(entry.packed, validate=True), MOST_UNPACKED)
        text, _, rest = plain.partition(b"\0")
        whose = msgspec.json.decode(text, type=list[Who])
    except (binascii.Error, zlib.error, msgspec.DecodeError) as error:
        raise ValueError(f"not a record of traffic: {error}") from error
    if len(whose) != entry.rows or len(rest) != entry.rows * WIDTH * 8:
        raise ValueError("not a record of traffic: its rows aren't as many as it says")
    columns = []
    for column in range(WIDTH):
        values = array("q")
        values.frombytes(rest[column * entry.rows * 8 : (column + 1) * entry.rows * 8])
        if sys.byteorder == "big":
            values.byteswap()
        columns.append(values)
    return whose, columns
