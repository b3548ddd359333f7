"""Which queues have a worker: each keeps a key in Redis alive for every queue it serves (console.project.celery)."""

from __future__ import annotations

from collections.abc import Iterable

import redis

from console.live.redis_link import connection

USUAL = "celery"
"""The queue of everything that isn't bound to another machine."""


def key_of(queue: str) -> str:
    """Of a queue; "" is the usual one."""
    return "sluice:worker" if queue in ("", USUAL) else f"sluice:worker:{queue}"


def without_worker(queues: Iterable[str]) -> set[str]:
    """Those that nobody serves. Nothing is known while Redis is away: none."""
    asked = list(queues)
    try:
        return {queue for queue in asked if not connection().exists(key_of(queue))}
    except redis.RedisError:
        return set()
