"""The columns of the clients' table: one list from which the API's sort fields, the CSV, the page and its scripts draw.

A column is a field of `ClientEntry`, but for the one that a page draws of its own samples (`Kind.TREND`) and those it reads out of the forecast. Add a row here, and
it can be sorted by, is in the CSV, and can be shown.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    """How a value is written and compared."""

    NAME = "name"
    TEXT = "text"
    DELIVERY = "delivery"
    HEALTH = "health"
    COUNT = "count"
    BYTES = "bytes"
    MS = "ms"
    SECONDS = "seconds"
    RATE = "rate"
    PERCENT = "percent"
    AGE = "age"
    """A moment in ms UTC, shown as how long ago it was."""
    NESTED = "nested"
    """An object or a list: in the CSV as JSON."""
    TREND = "trend"
    """Drawn by the page: no field."""
    LIMIT = "limit"
    """Of `forecast`: how full the limit is that it comes to first."""
    THEN = "then"
    """Of `forecast`: what happens at that limit, and in how long."""


_DRAWN: Final = {Kind.TREND, Kind.LIMIT, Kind.THEN}
_TEXTS: Final = {Kind.NAME, Kind.TEXT, Kind.DELIVERY, Kind.HEALTH, Kind.NESTED, *_DRAWN}


class Column(NamedTuple):
    """One column. `shown`: on the page unless somebody chooses otherwise."""

    key: str
    label: str
    help: str
    kind: Kind
    shown: bool = False
    sortable: bool = True

    @property
    def numeric(self) -> bool:
        """Whether it is aligned to the right, and sorted downwards at first."""
        return self.kind not in _TEXTS

    @property
    def is_field(self) -> bool:
        """Whether an entry has it."""
        return self.kind not in _DRAWN


CLIENT_COLUMNS: tuple[Column, ...] = (
    Column("name", "Client", "The name it logged on with", Kind.NAME, shown=True),
    Column("delivery", "Delivery", "What the broker does for it", Kind.DELIVERY, shown=True),
    Column("health", "Health", "What it does with what it is sent, the worst first", Kind.HEALTH, shown=True),
    Column("transport", "Transport", "The transport it came in by", Kind.TEXT, shown=True),
    Column("member", "Member", "The member of the group that it is connected to", Kind.TEXT),
    Column("protocol", "Protocol", "What it speaks", Kind.TEXT),
    Column("remote", "Address", "Where it comes from", Kind.TEXT),
    Column("user", "User", "As whom it logged on", Kind.TEXT),
    Column("seconds_behind", "Lag", "Age of the oldest record it hasn't been sent", Kind.SECONDS, shown=True),
    Column("lag_messages", "Messages", "Records it isn't sent yet, of its subscription furthest behind; before a replay those of all topics", Kind.COUNT, shown=True),
    Column("lag_at_most", "At most", "Whether those are of all topics of the log that its replay has yet to come to", Kind.TEXT),
    Column("lag_bytes", "Bytes", "Bytes that wait, of its subscription with most", Kind.BYTES),
    Column("lag_ms", "Waiting for", "Age of its oldest message that waits", Kind.MS),
    Column("trend", "Trend", "Messages behind over the last two minutes of this tab", Kind.TREND, shown=True, sortable=False),
    Column("limit", "Nearest limit", "How full the limit is that it comes to first", Kind.LIMIT, shown=True, sortable=False),
    Column("then", "Then it is", "What the policy does at that limit, and when at this slope", Kind.THEN, shown=True, sortable=False),
    Column("caught_up_in_s", "Caught up in", "As it goes now; nothing while there is no honest time", Kind.SECONDS, shown=True),
    Column("caught_up_why_none", "Why no time", "Why it can't be told when it has caught up", Kind.TEXT, sortable=False),
    Column("waiting_messages", "Waiting", "Messages not handed over yet", Kind.COUNT),
    Column("waiting_bytes", "Waiting, bytes", "Bytes of their bodies", Kind.BYTES),
    Column("in_flight_messages", "In flight", "Messages handed over and not acknowledged", Kind.COUNT),
    Column("in_flight_bytes", "In flight, bytes", "Bytes of their bodies", Kind.BYTES),
    Column("acknowledged_messages", "Acknowledged", "Messages it has", Kind.COUNT),
    Column("acknowledged_bytes", "Acknowledged, bytes", "Bytes of their bodies", Kind.BYTES),
    Column("matched_messages", "Matched", "All messages that were for it", Kind.COUNT),
    Column("matched_bytes", "Matched, bytes", "Bytes of their bodies", Kind.BYTES),
    Column("lost_messages", "Lost", "Messages in the loss ledger", Kind.COUNT),
    Column("gone", "Gone", "Messages it will not get, by cause", Kind.NESTED, sortable=False),
    Column("gone_bytes", "Gone, bytes", "Bytes of their bodies", Kind.BYTES),
    Column("memory_percent", "Memory", "Its share of the pool's memory limit", Kind.PERCENT),
    Column("disk_percent", "Disk", "Its share of the pool's disk limit", Kind.PERCENT),
    Column("outbox_bytes", "Outbox", "Bytes it takes of the pool's memory", Kind.BYTES),
    Column("outbox_messages", "Outbox, messages", "Messages in memory", Kind.COUNT),
    Column("spool_bytes", "Spool", "Bytes of its spool on disk", Kind.BYTES),
    Column("spool_messages", "Spool, messages", "Messages in its spool", Kind.COUNT),
    Column("offlined_since", "Offlined", "How long ago it was offlined", Kind.AGE),
    Column("delivered_messages", "Delivered", "Messages handed over", Kind.COUNT),
    Column("delivered_bytes", "Delivered, bytes", "Bytes of their bodies", Kind.BYTES),
    Column("published_messages", "Published", "Messages it published", Kind.COUNT),
    Column("published_topics", "Published, by topic", "Messages it published, by topic", Kind.NESTED, sortable=False),
    Column("rate_out_messages", "Out /s", "Messages handed over to it each second", Kind.RATE, shown=True),
    Column("write_blocked_ms", "Socket blocked", "How long its socket has taken nothing", Kind.MS),
    Column("window_full_ms", "Window full", "How long a window of its subscriptions has been full", Kind.MS),
    Column("unacked_messages", "Unacknowledged", "Messages sent and not acknowledged by the application", Kind.COUNT),
    Column("held_bytes", "Held", "Bytes waiting for acknowledgements, or held by a policy", Kind.BYTES),
    Column("pool", "Pool", "The pool it draws on", Kind.TEXT),
    Column("revision", "Revision", "The policy revision it is held to", Kind.COUNT),
    Column("connected_at", "Connected", "How long it has been logged on", Kind.AGE),
    Column("forecast", "Forecast", "The limit it comes to first", Kind.NESTED, sortable=False),
    Column("why_slow", "Why slow", "Why it is behind", Kind.NESTED, sortable=False),
    Column("last_decision", "Last decision", "The newest decision about it", Kind.NESTED, sortable=False),
    Column("subscriptions", "Subscriptions", "Each of them", Kind.NESTED, sortable=False),
)  # fmt: skip
DEFAULT_SORT: Final = "health"
"""The worst health first; equal ones by lag, the greatest first, then by name."""


def sort_fields() -> list[str]:
    """What clients can be sorted by."""
    return [column.key for column in CLIENT_COLUMNS if column.sortable]


def fields() -> list[str]:
    """What a line of the CSV has, in order."""
    return [column.key for column in CLIENT_COLUMNS if column.is_field]


def drawn(also: frozenset[str] = frozenset()) -> list[Column]:
    """What the page shows: the usual ones, and those that somebody chose besides."""
    return [
        column
        for column in CLIENT_COLUMNS
        if column.shown or (column.key in also and column.kind is not Kind.NESTED)
    ]


def choosable() -> list[Column]:
    """What somebody may choose besides."""
    return [column for column in CLIENT_COLUMNS if not column.shown and column.kind is not Kind.NESTED]
