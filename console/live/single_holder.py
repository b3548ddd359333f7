"""Lock in Redis for work that only one process does at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import redis

from console.live.redis_link import redis_connection


@contextmanager
def single_holder(name: str, max_s: float) -> Iterator[bool]:
    """Hold a lock within the block. Gives False if another process holds it, and True without Redis.

    Args:
        name: Name of the work.
        max_s: Seconds after which the lock is free even if its holder was killed.
    """
    lock = redis_connection().lock(f"sluice:single:{name}", timeout=max_s)
    try:
        held = lock.acquire(blocking=False)
    except redis.RedisError:
        yield True
        return
    try:
        yield held
    finally:
        if held:
            with suppress(redis.RedisError):
                lock.release()
