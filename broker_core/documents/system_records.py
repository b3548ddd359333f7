"""Records that a broker journals about its clients, and samples of clients with a backlog.

Events are on `$SLUICE.clients`, decisions on `$SLUICE.decisions`, losses on `$SLUICE.ledger`, and samples on
`$SLUICE.traffic`. Control planes and the pipeline read them for as long as the journal retains them.

Each second the broker samples clients with waiting messages: the values that a policy judges, so that another
policy can be tested on them later (`pipeline/jobs/backtest.py`). Clients that keep up are not sampled,
because no rule acts on them. The first second in which no messages wait any more is sampled. A document holds
some hundreds of rows. Their values are packed by column, because most of them hardly change from row to row.
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
    """Event of a client or of the broker.

    Events of a client: connect, disconnect, subscribe, unsubscribe, offline_start, offline_stop, slow, and a
    sample of its lag. `state` is its delivery state, or the reason of a disconnect. Events of the broker
    itself have a `client` that begins with $: clock_jumped with the jump in `state`; event_loop_stalled with
    duration and cause; member_downgraded, member_upgraded, link_downgraded, link_upgraded and link_set_back
    with figures.
    """

    at: Moment
    client: str
    event: str
    state: str
    topic: str | None = None
    """Topic of the subscription."""
    filter: str | None = None
    lag_messages: int | None = None
    """Lag in messages. This and the following fields are only set for samples, unless stated otherwise."""
    lag_bytes: int | None = None
    lag_ms: int | None = None
    outbox_bytes: int | None = None
    spool_bytes: int | None = None
    delivered_messages: int | None = None
    """Messages handed over since the logon, as delivered_bytes.

    Also set for a disconnect, for its whole session.
    """
    delivered_bytes: int | None = None
    matched_messages: int | None = None
    """Number of messages matched since the logon. Also set for a disconnect.

    The next four fields divide it: their sum equals it.
    """
    acknowledged_messages: int | None = None
    in_flight_messages: int | None = None
    waiting_messages: int | None = None
    gone_messages: int | None = None
    seconds_behind: float | None = None
    health: str | None = None
    transport: str | None = None
    """Transport. Also set for connect, disconnect and subscription events."""


class DecisionCandidate(Document, frozen=True, kw_only=False):
    """Client that a rule considered, with its usage of the scarce resource."""

    client: str
    used: int


class DecisionEntry(Document, frozen=True, kw_only=True):
    """Decision of a rule about one client, with its evidence and its cost."""

    id: str = ""
    """Unique id, also over restarts; "" in a preview."""
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
    """Client's own usage of the measured resource, in `unit`."""
    chosen_over: DecisionCandidate | None = None
    """Client that would have been chosen next. None: there is none."""
    kept: int = 0
    """Messages that are retained in the spool or the log."""
    lost: int = 0
    """Messages that cannot be recovered."""
    resume_bookmark: str = ""
    sentence: str = ""
    shape: str = ""
    subscription: str = ""
    """Id of the affected subscription; "": the whole client."""
    topic: str = ""
    rung: int = 0
    """Index of the ladder's rung, from 0."""
    rungs: int = 1
    """Number of rungs of the ladder."""
    for_ms: int = 0
    """Duration of a pause (0: until resumed) or of a refusal."""
    hold_ms: int = 0
    """Time for which the limit had to be exceeded."""
    worst_case_ms: int = 0
    """Maximum delay between exceeding the limit and the action."""
    first_lost: str = ""
    """Bookmark of the first lost record."""
    last_lost: str = ""
    """Bookmark of the last lost record."""
    resume_token: str = ""
    told: str = "unknown"
    """Whether the client received the notice: yes, no or unknown."""
    times: int = 1
    """Number of times that the action was done within the second."""
    problem: Annotated[str, Meta(description="Error of the disk, if the disk caused the decision.")] = ""
    held_at: Annotated[
        int | None,
        Meta(
            description="Allowance of the staged rollout that suppressed the decision. Null if the decision "
            "wasn't suppressed."
        ),
    ] = None
    samples: Annotated[
        list[list[int]],
        Meta(description="Time (ms), bytes in the outbox and the spool, age in ms, bytes sent."),
    ] = []


class LossEntry(Document, frozen=True, kw_only=True):
    """Interval of messages that a subscription did not receive.

    `first` and `last` are bookmarks, or "" if none of the messages is journaled.
    """

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
    exact: bool = False
    """Whether each record of the log from `first` to `last` is one of the messages; else they are bounds."""


class TrafficRowKey(NamedTuple):
    """Client of a traffic row. `topic` is that of its subscription, if it has exactly one."""

    name: str
    transport: str
    user: str
    connected: int
    topic: str


class TrafficSample(NamedTuple):
    """Sample of a client with a backlog. Times are ms UTC, where 0 means none; sizes are bytes."""

    at: int
    offlined: int
    """1 from the decision to offline the client until it is live again, else 0."""
    memory: int
    """Bytes of the client's backlog in memory."""
    disk: int
    """Bytes of the client's spool on disk."""
    messages: int
    """Number of messages in memory."""
    matched_messages: int
    matched_bytes: int
    """Bytes of the bodies of all messages matched since the logon."""
    acknowledged_bytes: int
    """Bytes of the bodies of messages that the peer has acknowledged since the logon."""
    taken_bytes: int
    """Bytes of the connection that the peer has acknowledged since the logon."""
    owed_messages: int
    """Number of waiting and unacknowledged messages."""
    owed_bytes: int
    """Bytes of the bodies of waiting and unacknowledged messages."""
    oldest_at: int
    """Time at which the oldest waiting message was accepted."""
    unacked_at: int
    """Time at which the oldest unacknowledged message was sent."""
    blocked_since: int
    """Time since which the socket has accepted no bytes."""
    lump_bytes: int
    """Bytes of one step of the peer's receive window."""
    unjournaled: int
    """Number of waiting and unacknowledged messages that are not journaled."""
    subscriptions: int


WIDTH: Final = len(TrafficSample._fields)
MAX_ROWS: Final = 256
"""Maximum number of rows in one document. Packing them takes a third of a millisecond."""
MAX_UNPACKED: Final = 4 * 1024 * 1024
"""Maximum bytes of a document's unpacked samples."""


class TrafficEntry(Document, frozen=True, kw_only=True):
    """Samples of clients with waiting messages."""

    at: Moment
    rows: int
    left_out: Annotated[
        int, Meta(description="Further samples that weren't recorded, because there were too many.")
    ] = 0
    packed: Annotated[
        str,
        Meta(
            description="Base64 of a deflated JSON list of whose the rows are, a zero byte, and 64-bit "
            "numbers by column."
        ),
    ]


def pack_samples(
    at_ms: int, row_keys: list[TrafficRowKey], figures: array[int], left_out: int
) -> TrafficEntry:
    """Return the document of samples.

    Args:
        at_ms: Time in ms UTC.
        whose: Client of each row.
        figures: Values of all rows, row after row.
        left_out: Number of samples that were not recorded.
    """
    if sys.byteorder == "big":
        figures = array("q", figures)
        figures.byteswap()
    columns = b"".join(figures[column::WIDTH].tobytes() for column in range(WIDTH))
    text = msgspec.json.encode(row_keys)
    packed = base64.b64encode(zlib.compress(text + b"\0" + columns, 1)).decode()
    return TrafficEntry(at=at_ms, rows=len(row_keys), left_out=left_out, packed=packed)


def unpack_samples(entry: TrafficEntry) -> tuple[list[TrafficRowKey], list[array[int]]]:
    """Return the clients of the rows, and the columns of `TrafficSample`.

    Raises:
        ValueError: The entry is not a valid record of traffic.
    """
    try:
        inflating = zlib.decompressobj()
        plain = inflating.decompress(base64.b64decode(entry.packed, validate=True), MAX_UNPACKED)
        text, _, packed_columns = plain.partition(b"\0")
        row_keys = msgspec.json.decode(text, type=list[TrafficRowKey])
    except (binascii.Error, zlib.error, msgspec.DecodeError) as error:
        raise ValueError(f"not a record of traffic: {error}") from error
    if len(row_keys) != entry.rows or len(packed_columns) != entry.rows * WIDTH * 8:
        raise ValueError("not a record of traffic: its number of rows is wrong")
    columns = []
    for column in range(WIDTH):
        values = array("q")
        values.frombytes(packed_columns[column * entry.rows * 8 : (column + 1) * entry.rows * 8])
        if sys.byteorder == "big":
            values.byteswap()
        columns.append(values)
    return row_keys, columns
