"""What a broker journals about its clients: events on `$SLUICE.clients`, decisions on `$SLUICE.decisions`, losses on
`$SLUICE.ledger`. Control planes and the pipeline read them for as long as the journal holds them.

What a broker journals each second about the clients for whom something waits, on `$SLUICE.traffic`: what a policy would
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
from msgspec import Meta, field

from broker_core.documents.base import Document, Moment


class ClientEvent(Document, frozen=True, kw_only=True, omit_defaults=True):
    """Something happened to a client: connect, disconnect, subscribe, unsubscribe, offline_start, offline_stop, slow, or a
    sample of how far it is behind. `state` is its delivery, or of a disconnect why. Of the broker itself, whose name begins
    with $: clock_jumped, with how far in `state`; event_loop_stalled, with how long and why;
    member_downgraded, member_upgraded, link_downgraded, link_upgraded and link_set_back, with the figures."""

    at: Moment
    client: str
    event: str
    state: str
    topic: str | None = None
    """Of a subscription."""
    filter: str | None = None
    lag_messages: int | None = None
    """From here on of a sample."""
    lag_bytes: int | None = None
    lag_ms: int | None = None
    outbox_bytes: int | None = None
    spool_bytes: int | None = None
    delivered_messages: int | None = None
    """Since its logon, as delivered_bytes; also of a disconnect: all of its session."""
    delivered_bytes: int | None = None
    matched_messages: int | None = None
    """All that was for it since its logon; what became of it are the next four, which come to the same. Also
    of a disconnect."""
    acknowledged_messages: int | None = None
    in_flight_messages: int | None = None
    waiting_messages: int | None = None
    gone_messages: int | None = None
    seconds_behind: float | None = None
    health: str | None = None
    transport: str | None = None
    """Of a connect, a disconnect and subscriptions as well."""


class DecisionCandidate(Document, frozen=True, kw_only=False):
    """A client that was considered, with its use of what ran short."""

    client: str
    used: int


class DecisionEntry(Document, frozen=True, kw_only=True):
    """One explained act on a client: who, how, by which rule, on what evidence, and what it cost."""

    id: str = ""
    """Unique over restarts; "" in a preview."""
    at: Moment
    client: str
    transport: str = ""
    pool: str = ""
    action: str
    reason: str = ""
    rule: str = ""
    setting: str = ""
    revision: int = 0
    mode: str = ""
    choose: str = ""
    signal: str = ""
    observed: Annotated[int | None, Meta(description="In `unit`, as `limit` and `used`.")] = None
    limit: int | None = None
    unit: str = ""
    used: int = 0
    chosen_over: DecisionCandidate | None = None
    kept: int = 0
    lost: int = 0
    resume_bookmark: str = ""
    sentence: str = ""
    shape: str = ""
    subscription: str = ""
    topic: str = ""
    rung: int = 0
    rungs: int = 1
    for_ms: int = 0
    hold_ms: int = 0
    worst_case_ms: int = 0
    first_lost: str = ""
    last_lost: str = ""
    resume_token: str = ""
    told: str = "unknown"
    times: int = 1
    problem: Annotated[str, Meta(description="What the disk said, where that and no limit is why.")] = ""
    held_at: Annotated[
        int | None,
        Meta(
            description="Allowance of the staged rollout that held the decision: nothing was done. Else null."
        ),
    ] = None
    samples: Annotated[
        list[list[int]],
        Meta(description="Moment (ms), bytes in the outbox and the spool, age in ms, bytes sent."),
    ] = []


class LossEntry(Document, frozen=True, kw_only=True):
    """An interval of messages that a subscription did not get. `first` and `last` are bookmarks, "" when no
    journal has any."""

    at: Moment
    client: str
    subscription: str
    topic: str
    cause: str
    rule: str
    messages: int
    bytes: int
    unjournaled: int
    first: str = field(name="from")
    last: str = field(name="to")


class TrafficRowKey(NamedTuple):
    """Whose row it is. `topic` is of its subscription, if it has just one."""

    name: str
    transport: str
    user: str
    connected: int
    topic: str


class TrafficSample(NamedTuple):
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


WIDTH: Final = len(TrafficSample._fields)
MAX_ROWS: Final = 256
"""Of one document: packing it takes a third of a millisecond."""
MAX_UNPACKED: Final = 4 * 1024 * 1024


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


def pack_samples(at_ms: int, whose: list[TrafficRowKey], figures: array[int], left_out: int) -> TrafficEntry:
    """The document of rows whose figures lie one after the other."""
    if sys.byteorder == "big":
        figures = array("q", figures)
        figures.byteswap()
    columns = b"".join(figures[column::WIDTH].tobytes() for column in range(WIDTH))
    text = msgspec.json.encode(whose)
    packed = base64.b64encode(zlib.compress(text + b"\0" + columns, 1)).decode()
    return TrafficEntry(at=at_ms, rows=len(whose), left_out=left_out, packed=packed)


def unpack_samples(entry: TrafficEntry) -> tuple[list[TrafficRowKey], list[array[int]]]:
    """Whose the rows are, and the columns of Figures. ValueError for what isn't one."""
    try:
        inflating = zlib.decompressobj()
        plain = inflating.decompress(base64.b64decode(entry.packed, validate=True), MAX_UNPACKED)
        text, _, rest = plain.partition(b"\0")
        whose = msgspec.json.decode(text, type=list[TrafficRowKey])
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
