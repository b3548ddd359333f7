"""Columns of the clients' table: one list for the API's sort fields, the CSV, and the page with its scripts.

A column is a field of `ClientEntry`, except `ColumnType.TREND`, which the page draws from its own samples,
and columns that are computed from the forecast. A new row here can be sorted by, is in the CSV, and can be
shown.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class ColumnType(StrEnum):
    """Way in which a column's value is formatted and compared."""

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
    """Time in ms UTC, shown as the time elapsed since then."""
    NESTED = "nested"
    """Object or list, written as JSON in the CSV."""
    TREND = "trend"
    """Chart that the page draws. Not a field of `ClientEntry`."""
    LIMIT = "limit"
    """Usage of the nearest limit, in percent, from `forecast`."""
    THEN = "then"
    """Action at the nearest limit and the time until it, from `forecast`."""


_DRAWN: Final = {ColumnType.TREND, ColumnType.LIMIT, ColumnType.THEN}
"""Column types without a field of `ClientEntry`."""
_TEXTS: Final = {
    ColumnType.NAME,
    ColumnType.TEXT,
    ColumnType.DELIVERY,
    ColumnType.HEALTH,
    ColumnType.NESTED,
    *_DRAWN,
}


class ClientColumn(NamedTuple):
    """Column of the clients' table.

    `shown` columns are on the page by default. `help` is the tooltip of the heading.
    """

    key: str
    label: str
    help: str
    kind: ColumnType
    shown: bool = False
    sortable: bool = True

    @property
    def numeric(self) -> bool:
        """Whether the column is right-aligned, and sorted in descending order first."""
        return self.kind not in _TEXTS

    @property
    def is_field(self) -> bool:
        """Whether `ClientEntry` has a field with this key."""
        return self.kind not in _DRAWN


CLIENT_COLUMNS: tuple[ClientColumn, ...] = (
    ClientColumn("name", "Client", "The name it logged on with", ColumnType.NAME, shown=True),
    ClientColumn("delivery", "Delivery", "What the broker does for it", ColumnType.DELIVERY, shown=True),
    ClientColumn(
        "health",
        "Health",
        "What it does with what it is sent, the worst first",
        ColumnType.HEALTH,
        shown=True,
    ),
    ClientColumn("transport", "Transport", "The transport it came in by", ColumnType.TEXT, shown=True),
    ClientColumn("member", "Member", "The member of the group that it is connected to", ColumnType.TEXT),
    ClientColumn("protocol", "Protocol", "What it speaks", ColumnType.TEXT),
    ClientColumn("remote", "Address", "Where it comes from", ColumnType.TEXT),
    ClientColumn("user", "User", "As whom it logged on", ColumnType.TEXT),
    ClientColumn(
        "seconds_behind",
        "Lag",
        "Age of the oldest record it hasn't been sent",
        ColumnType.SECONDS,
        shown=True,
    ),
    ClientColumn(
        "lag_messages",
        "Messages",
        "Records it isn't sent yet, of its subscription furthest behind; before a replay those of all topics",
        ColumnType.COUNT,
        shown=True,
    ),
    ClientColumn(
        "lag_at_most",
        "At most",
        "Whether those are of all topics of the log that its replay has yet to come to",
        ColumnType.TEXT,
    ),
    ClientColumn("lag_bytes", "Bytes", "Bytes that wait, of its subscription with most", ColumnType.BYTES),
    ClientColumn("lag_ms", "Waiting for", "Age of its oldest message that waits", ColumnType.MS),
    ClientColumn(
        "trend",
        "Trend",
        "Messages behind over the last two minutes of this tab",
        ColumnType.TREND,
        shown=True,
        sortable=False,
    ),
    ClientColumn(
        "limit",
        "Nearest limit",
        "How full the limit is that it comes to first",
        ColumnType.LIMIT,
        shown=True,
        sortable=False,
    ),
    ClientColumn(
        "then",
        "Then it is",
        "What the policy does at that limit, and when at this slope",
        ColumnType.THEN,
        shown=True,
        sortable=False,
    ),
    ClientColumn(
        "caught_up_in_s",
        "Caught up in",
        "As it goes now; nothing while there is no honest time",
        ColumnType.SECONDS,
        shown=True,
    ),
    ClientColumn(
        "caught_up_why_none",
        "Why no time",
        "Why it can't be told when it has caught up",
        ColumnType.TEXT,
        sortable=False,
    ),
    ClientColumn("waiting_messages", "Waiting", "Messages not handed over yet", ColumnType.COUNT),
    ClientColumn("waiting_bytes", "Waiting, bytes", "Bytes of their bodies", ColumnType.BYTES),
    ClientColumn(
        "in_flight_messages", "In flight", "Messages handed over and not acknowledged", ColumnType.COUNT
    ),
    ClientColumn("in_flight_bytes", "In flight, bytes", "Bytes of their bodies", ColumnType.BYTES),
    ClientColumn("acknowledged_messages", "Acknowledged", "Messages it has", ColumnType.COUNT),
    ClientColumn("acknowledged_bytes", "Acknowledged, bytes", "Bytes of their bodies", ColumnType.BYTES),
    ClientColumn("matched_messages", "Matched", "All messages that were for it", ColumnType.COUNT),
    ClientColumn("matched_bytes", "Matched, bytes", "Bytes of their bodies", ColumnType.BYTES),
    ClientColumn(
        "lost_messages",
        "Lost",
        "Messages discarded without its request and not kept in the log",
        ColumnType.COUNT,
    ),
    ClientColumn("gone", "Gone", "Messages it will not get, by cause", ColumnType.NESTED, sortable=False),
    ClientColumn("gone_bytes", "Gone, bytes", "Bytes of their bodies", ColumnType.BYTES),
    ClientColumn("memory_percent", "Memory", "Its share of the pool's memory limit", ColumnType.PERCENT),
    ClientColumn("disk_percent", "Disk", "Its share of the pool's disk limit", ColumnType.PERCENT),
    ClientColumn("outbox_bytes", "Outbox", "Bytes it takes of the pool's memory", ColumnType.BYTES),
    ClientColumn("outbox_messages", "Outbox, messages", "Messages in memory", ColumnType.COUNT),
    ClientColumn("spool_bytes", "Spool", "Bytes of its spool on disk", ColumnType.BYTES),
    ClientColumn("spool_messages", "Spool, messages", "Messages in its spool", ColumnType.COUNT),
    ClientColumn("offlined_since", "Offlined", "How long ago it was offlined", ColumnType.AGE),
    ClientColumn("delivered_messages", "Delivered", "Messages handed over", ColumnType.COUNT),
    ClientColumn("delivered_bytes", "Delivered, bytes", "Bytes of their bodies", ColumnType.BYTES),
    ClientColumn("published_messages", "Published", "Messages it published", ColumnType.COUNT),
    ClientColumn(
        "published_topics",
        "Published, by topic",
        "Messages it published, by topic",
        ColumnType.NESTED,
        sortable=False,
    ),
    ClientColumn(
        "rate_out_messages", "Out /s", "Messages handed over to it each second", ColumnType.RATE, shown=True
    ),
    ClientColumn(
        "write_blocked_ms", "Socket blocked", "How long its socket has taken nothing", ColumnType.MS
    ),
    ClientColumn(
        "window_full_ms", "Window full", "How long a window of its subscriptions has been full", ColumnType.MS
    ),
    ClientColumn(
        "unacked_messages",
        "Unacknowledged",
        "Messages sent and not acknowledged by the application",
        ColumnType.COUNT,
    ),
    ClientColumn(
        "held_bytes", "Held", "Bytes waiting for acknowledgements, or held by a policy", ColumnType.BYTES
    ),
    ClientColumn("pool", "Pool", "The pool it draws on", ColumnType.TEXT),
    ClientColumn("revision", "Revision", "The policy revision it is held to", ColumnType.COUNT),
    ClientColumn("connected_at", "Connected", "How long it has been logged on", ColumnType.AGE),
    ClientColumn(
        "heartbeat_ms",
        "Heartbeat",
        "Interval in which the client agreed to send something; none without heartbeats",
        ColumnType.MS,
    ),
    ClientColumn("forecast", "Forecast", "The limit it comes to first", ColumnType.NESTED, sortable=False),
    ClientColumn("why_slow", "Why slow", "Why it is behind", ColumnType.NESTED, sortable=False),
    ClientColumn(
        "last_decision", "Last decision", "The newest decision about it", ColumnType.NESTED, sortable=False
    ),
    ClientColumn("subscriptions", "Subscriptions", "Each of them", ColumnType.NESTED, sortable=False),
)
DEFAULT_SORT: Final = "health"
"""Default order: the worst health first, then the largest lag, then the name."""


def sort_fields() -> list[str]:
    """Return the keys of columns that clients can be sorted by."""
    return [column.key for column in CLIENT_COLUMNS if column.sortable]


def csv_columns() -> list[str]:
    """Return the keys of the CSV's columns, in order."""
    return [column.key for column in CLIENT_COLUMNS if column.is_field]


def visible_columns(also: frozenset[str] = frozenset()) -> list[ClientColumn]:
    """Return the columns that the page shows: the default ones, and the operator's selection `also`."""
    return [
        column
        for column in CLIENT_COLUMNS
        if column.shown or (column.key in also and column.kind is not ColumnType.NESTED)
    ]


def optional_columns() -> list[ClientColumn]:
    """Return the columns that an operator may show in addition to the default ones."""
    return [column for column in CLIENT_COLUMNS if not column.shown and column.kind is not ColumnType.NESTED]
