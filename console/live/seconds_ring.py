"""Figures of the last 15 minutes in Redis: a ring of records of a second for each client and resource.

    key     sluice:ring:INSTANCE:client:NAME, …:instance:NAME, …:transport:NAME, …:pool:NAME
    value   SECONDS records; the record of second s is at byte (s % SECONDS) * RECORD.size
    record  u32 second, u8 state, then NUMBERS as f32 (plots need at most seven digits)

Each second writes one SETRANGE per ring, so that nothing grows. Keys that are no longer written expire. An
idle client is written only every ten seconds. Losing Redis loses 15 minutes of detail: the database has its
own samples.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, cast

import redis

from broker_core.documents.clients import ClientEntry
from broker_core.errors import OperatorError
from console.live.redis_link import redis_connection as _connection
from console.live.resource_points import ResourcePoint

SECONDS = 900
"""Records of a ring, one per second."""
IDLE_INTERVAL_S = 10
"""Seconds between two records of an idle client."""
STATES = ("live", "replaying", "offlined", "draining", "paused")
NUMBERS = {
    "client": ("lag_messages", "lag_bytes", "lag_ms", "outbox_bytes", "spool_bytes", "rate_out_messages"),
    "place": (
        "clients",
        "offlined",
        "messages_in",
        "messages_out",
        "bytes_in",
        "bytes_out",
        "lag_messages",
        "memory_used",
        "memory_limit",
        "disk_used",
        "disk_limit",
    ),
}
_VALUES = {family: attrgetter(*names) for family, names in NUMBERS.items()}
_RECORDS = {family: struct.Struct(f"<IB3x{len(names)}f") for family, names in NUMBERS.items()}


# Keys whose expiry was set within the current minute.
_expiring: set[str] = set()


def record_type(kind: str) -> str:
    """Return the type of record that a kind of object has: "client" or "place" (any resource)."""
    return "client" if kind == "client" else "place"


def write_second(
    instance: str,
    second: int,
    things: Iterable[tuple[str, ClientEntry | ResourcePoint]],
    connection: Any = None,
) -> int:
    """Store one second of (kind, client or resource), and return how many were written.

    Raises redis.RedisError.
    """
    link = connection or _connection()
    written, slot = 0, second % SECONDS
    if second % 60 == 0:
        _expiring.clear()
    with link.pipeline(transaction=False) as pipe:
        for kind, thing in things:
            client = thing if isinstance(thing, ClientEntry) else None
            if client is not None and second % IDLE_INTERVAL_S and client.is_idle:
                continue
            family, key = record_type(kind), f"sluice:ring:{instance}:{kind}:{thing.name}"
            record = _RECORDS[family]
            state = STATES.index(client.delivery) if client is not None else 0
            packed = record.pack(second, state, *_VALUES[family](thing))
            pipe.setrange(key, slot * record.size, packed)
            if key not in _expiring:
                _expiring.add(key)
                pipe.expire(key, SECONDS + 120)
            written += 1
        pipe.execute()
    return written


def read_seconds(
    instance: str, kind: str, name: str, since: int, until: int, connection: Any = None
) -> list[dict[str, Any]]:
    """Return points {at, state, numbers…} of the seconds in [since, until), oldest first.

    Raises:
        OperatorError: `redis_away`.
    """
    try:
        found = (connection or _connection()).get(f"sluice:ring:{instance}:{kind}:{name}")
        value = cast("bytes | None", found) or b""  # bytes, as nothing decodes
    except redis.RedisError as problem:
        raise OperatorError(
            "redis_away",
            f"Redis can't be reached: {type(problem).__name__}.",
            "Request a step of 10 s or more.",
        ) from problem
    record, names = _RECORDS[record_type(kind)], NUMBERS[record_type(kind)]
    complete = value[: len(value) - len(value) % record.size]
    points = [
        {"at": second, "state": STATES[state], **dict(zip(names, numbers, strict=True))}
        for second, state, *numbers in record.iter_unpack(complete)
        if since <= second < until
    ]
    points.sort(key=lambda point: int(point["at"]))
    return points
