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
    ClientColumn("name", "Client", "Name with which the client logged on", ColumnType.NAME, shown=True),
    ClientColumn(
        "delivery",
        "Delivery",
        "Delivery state: live, replaying, offlined, draining or paused",
        ColumnType.DELIVERY,
        shown=True,
    ),
    ClientColumn(
        "health",
        "Health",
        "Health of the client; sorts the worst first",
        ColumnType.HEALTH,
        shown=True,
    ),
    ClientColumn("transport", "Transport", "Transport to which it is connected", ColumnType.TEXT, shown=True),
    ClientColumn("member", "Member", "Member of the group to which it is connected", ColumnType.TEXT),
    ClientColumn("protocol", "Protocol", "Protocol of the connection", ColumnType.TEXT),
    ClientColumn("remote", "Address", "Address and port of the client", ColumnType.TEXT),
    ClientColumn("user", "User", "User whose credentials it used", ColumnType.TEXT),
    ClientColumn(
        "seconds_behind",
        "Lag",
        "Age of the oldest unsent record",
        ColumnType.SECONDS,
        shown=True,
    ),
    ClientColumn(
        "lag_messages",
        "Messages",
        "Unsent records of the subscription with most; during its first replay, of all topics",
        ColumnType.COUNT,
        shown=True,
    ),
    ClientColumn(
        "lag_at_most",
        "At most",
        "Whether the number of messages is an upper bound, because a replay has not read them yet",
        ColumnType.TEXT,
    ),
    ClientColumn("lag_bytes", "Bytes", "Waiting bytes of the largest subscription queue", ColumnType.BYTES),
    ClientColumn("lag_ms", "Waiting for", "Age of the oldest waiting message", ColumnType.MS),
    ClientColumn(
        "trend",
        "Trend",
        "Unsent messages over the last two minutes of this tab",
        ColumnType.TREND,
        shown=True,
        sortable=False,
    ),
    ClientColumn(
        "limit",
        "Nearest limit",
        "Used share of the limit that it reaches first",
        ColumnType.LIMIT,
        shown=True,
        sortable=False,
    ),
    ClientColumn(
        "then",
        "Then it is",
        "Action of the policy at that limit, and the estimated time until then",
        ColumnType.THEN,
        shown=True,
        sortable=False,
    ),
    ClientColumn(
        "caught_up_in_s",
        "Caught up in",
        "Estimated time until no message waits; none if no estimate is reliable",
        ColumnType.SECONDS,
        shown=True,
    ),
    ClientColumn(
        "caught_up_why_none",
        "Why no time",
        "Reason why there is no estimate",
        ColumnType.TEXT,
        sortable=False,
    ),
    ClientColumn(
        "waiting_messages",
        "Waiting",
        "Messages not sent yet, in memory, in the spool or only in the log",
        ColumnType.COUNT,
    ),
    ClientColumn("waiting_bytes", "Waiting, bytes", "Bytes of their bodies", ColumnType.BYTES),
    ClientColumn("in_flight_messages", "In flight", "Messages sent and not acknowledged", ColumnType.COUNT),
    ClientColumn("in_flight_bytes", "In flight, bytes", "Bytes of their bodies", ColumnType.BYTES),
    ClientColumn(
        "acknowledged_messages",
        "Acknowledged",
        "Messages that the application or the client's kernel acknowledged",
        ColumnType.COUNT,
    ),
    ClientColumn("acknowledged_bytes", "Acknowledged, bytes", "Bytes of their bodies", ColumnType.BYTES),
    ClientColumn(
        "matched_messages", "Matched", "All messages that matched its subscriptions", ColumnType.COUNT
    ),
    ClientColumn("matched_bytes", "Matched, bytes", "Bytes of their bodies", ColumnType.BYTES),
    ClientColumn(
        "lost_messages",
        "Lost",
        "Messages discarded without the client's request, and not stored in the log for it",
        ColumnType.COUNT,
    ),
    ClientColumn("gone", "Gone", "Messages that were discarded, by cause", ColumnType.NESTED, sortable=False),
    ClientColumn("gone_bytes", "Gone, bytes", "Bytes of their bodies", ColumnType.BYTES),
    ClientColumn("memory_percent", "Memory", "Its share of the pool's memory limit", ColumnType.PERCENT),
    ClientColumn("disk_percent", "Disk", "Its share of the pool's disk limit", ColumnType.PERCENT),
    ClientColumn("outbox_bytes", "Outbox", "Bytes of the pool's memory that it uses", ColumnType.BYTES),
    ClientColumn("outbox_messages", "Outbox, messages", "Messages in memory", ColumnType.COUNT),
    ClientColumn("spool_bytes", "Spool", "Bytes of its spool on disk", ColumnType.BYTES),
    ClientColumn("spool_messages", "Spool, messages", "Messages in its spool", ColumnType.COUNT),
    ClientColumn("offlined_since", "Offlined", "Time since it was offlined", ColumnType.AGE),
    ClientColumn("delivered_messages", "Delivered", "Messages sent, acknowledged or not", ColumnType.COUNT),
    ClientColumn("delivered_bytes", "Delivered, bytes", "Bytes of their bodies", ColumnType.BYTES),
    ClientColumn("published_messages", "Published", "Published messages", ColumnType.COUNT),
    ClientColumn(
        "published_topics",
        "Published, by topic",
        "Published messages, by topic",
        ColumnType.NESTED,
        sortable=False,
    ),
    ClientColumn("rate_out_messages", "Out /s", "Messages sent per second", ColumnType.RATE, shown=True),
    ClientColumn(
        "write_blocked_ms",
        "Socket blocked",
        "Time for which it has acknowledged none of the bytes in flight",
        ColumnType.MS,
    ),
    ClientColumn(
        "window_full_ms",
        "Window full",
        "Time for which a window of a subscription has been full",
        ColumnType.MS,
    ),
    ClientColumn(
        "unacked_messages",
        "Unacknowledged",
        "Sent messages that the application hasn't acknowledged",
        ColumnType.COUNT,
    ),
    ClientColumn(
        "held_bytes",
        "Held",
        "Bytes in queues of subscriptions with a window, a pause or rules",
        ColumnType.BYTES,
    ),
    ClientColumn("pool", "Pool", "Pool whose limits apply to it", ColumnType.TEXT),
    ClientColumn("revision", "Revision", "Policy revision that applies to it", ColumnType.COUNT),
    ClientColumn("connected_at", "Connected", "Time since it connected", ColumnType.AGE),
    ClientColumn(
        "heartbeat_ms",
        "Heartbeat",
        "Interval in which the client agreed to send something; none without heartbeats",
        ColumnType.MS,
    ),
    ClientColumn("forecast", "Forecast", "Limit that it reaches first", ColumnType.NESTED, sortable=False),
    ClientColumn("why_slow", "Why slow", "Reason for the backlog", ColumnType.NESTED, sortable=False),
    ClientColumn(
        "last_decision", "Last decision", "Newest decision about it", ColumnType.NESTED, sortable=False
    ),
    ClientColumn(
        "subscriptions", "Subscriptions", "List of subscriptions", ColumnType.NESTED, sortable=False
    ),
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
