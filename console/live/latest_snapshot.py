"""A broker's newest snapshot in Redis, for processes that got a notice about it.

A snapshot of 10,000 clients has 15 MB. In the channel layer, one per second would queue for a slow process,
and Redis disconnects such a subscriber at 32 MB. Under a key, the newest replaces the previous one, and no
process waits for another.
"""

from __future__ import annotations

from typing import Any, cast

from console.live.redis_link import redis_connection as _connection

INLINE = 256 * 1024
"""Maximum bytes of a snapshot that is sent in the channel layer itself."""
LIFETIME_S = 5
"""Seconds until a snapshot expires, in case the broker sends no more."""


def write_snapshot(instance: str, snapshot: bytes, connection: Any = None) -> None:
    """Store a broker's newest snapshot. Raises redis.RedisError."""
    (connection or _connection()).set(_key(instance), snapshot, ex=LIFETIME_S)


def read_snapshot(instance: str, connection: Any = None) -> bytes | None:
    """Return a broker's newest stored snapshot as JSON, or None. Raises redis.RedisError."""
    return cast("bytes | None", (connection or _connection()).get(_key(instance)))  # never decoded


def _key(instance: str) -> str:
    return f"sluice:newest:{instance}"
