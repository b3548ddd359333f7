"""Which queues have a worker, and whether they move.

A worker keeps a key in Redis alive for every queue it serves (console.project.celery). Beat puts a pulse into
each queue, and the worker that takes it up notes the time: a queue whose slots are all busy takes none up.
"""

from __future__ import annotations

from collections.abc import Iterable

import redis

from console.live.redis_link import redis_connection
from console.queue_names import USUAL_QUEUE

STUCK_S = 60
"""A queue that has taken nothing up for so long doesn't move. A pulse comes every ten seconds."""


def worker_key(queue: str) -> str:
    """Of a queue; "" is the usual one."""
    return "sluice:worker" if queue in ("", USUAL_QUEUE) else f"sluice:worker:{queue}"


def pulse_key_of(queue: str) -> str:
    """Return the key of the moment, by Redis's clock, at which a queue last took something up."""
    return f"sluice:pulse:{queue or USUAL_QUEUE}"


def note_pulse(client: redis.Redis, queue: str) -> None:
    """Note that a queue has just taken something up."""
    client.set(pulse_key_of(queue), client.time()[0])


def seconds_stuck(client: redis.Redis, queue: str) -> int:
    """Return the seconds since a queue took something up; 0 while it moves, and when nothing is known."""
    noted = client.get(pulse_key_of(queue))
    silent = client.time()[0] - int(noted) if noted is not None else 0
    return silent if silent > STUCK_S else 0


def queues_without_worker(queues: Iterable[str]) -> set[str]:
    """Those that nobody serves. Nothing is known while Redis is away: none."""
    asked = list(queues)
    try:
        return {queue for queue in asked if not redis_connection().exists(worker_key(queue))}
    except redis.RedisError:
        return set()


def queues_stuck(queues: Iterable[str]) -> dict[str, int]:
    """Return the queues that don't move, with the seconds since they took something up; none while Redis is away."""
    try:
        found = {queue: seconds_stuck(redis_connection(), queue) for queue in queues}
    except redis.RedisError:
        return {}
    return {queue: seconds for queue, seconds in found.items() if seconds}
