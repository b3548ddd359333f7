"""A broker's newest snapshot in Redis, for whoever is told that it is there.

Of 10,000 clients it has 15 MB. Through the channel layer each second's would queue for a process that is slow to take it, and Redis
is set to end such a subscriber at 32 MB; under a key the newest replaces the one before, and nobody waits for anybody.
"""

from __future__ import annotations

from typing import Any, cast

from console.live.redis_link import redis_connection as _connection

INLINE = 256 * 1024
"""Bytes of a snapshot that go with the word that it is there."""
HELD_S = 5
"""A broker that says nothing more has no newest snapshot."""


def write_snapshot(instance: str, snapshot: bytes, connection: Any = None) -> None:
    """Put it in place of the one before. Raises redis.RedisError."""
    (connection or _connection()).set(_key(instance), snapshot, ex=HELD_S)


def read_snapshot(instance: str, connection: Any = None) -> bytes | None:
    """The newest, as JSON; None when there is none, or it came with the word. Raises redis.RedisError."""
    return cast("bytes | None", (connection or _connection()).get(_key(instance)))  # never decoded


def _key(instance: str) -> str:
    return f"sluice:newest:{instance}"
