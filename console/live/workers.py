"""Health of Celery's queues: whether each has a worker, and whether its worker accepts tasks.

A worker keeps a key in Redis alive for each queue it serves (console.project.celery). Beat puts a pulse
into each queue, and the worker that runs it stores the time. A queue whose slots are all busy runs no
pulse.
"""

from __future__ import annotations

from collections.abc import Iterable

import redis

from console.live.redis_link import redis_connection
from console.queue_names import USUAL_QUEUE

STUCK_S = 60
"""Seconds without a pulse after which a queue counts as stuck. Beat sends a pulse every ten seconds."""


def worker_key(queue: str) -> str:
    """Return the key that a queue's worker keeps alive. "" is the usual queue."""
    return "sluice:worker" if queue in ("", USUAL_QUEUE) else f"sluice:worker:{queue}"


def pulse_key(queue: str) -> str:
    """Return the key of the time, by Redis's clock, at which a queue last ran a pulse."""
    return f"sluice:pulse:{queue or USUAL_QUEUE}"


def note_pulse(client: redis.Redis, queue: str) -> None:
    """Record that a queue has just run a pulse."""
    client.set(pulse_key(queue), client.time()[0])


def seconds_stuck(client: redis.Redis, queue: str) -> int:
    """Return the seconds since a queue's last pulse; 0 if that is at most `STUCK_S` ago or unknown."""
    noted = client.get(pulse_key(queue))
    silent = client.time()[0] - int(noted) if noted is not None else 0
    return silent if silent > STUCK_S else 0


def queues_without_worker(queues: Iterable[str]) -> set[str]:
    """Return the queues without a worker; empty while Redis is away."""
    names = list(queues)
    try:
        return {queue for queue in names if not redis_connection().exists(worker_key(queue))}
    except redis.RedisError:
        return set()


def queues_stuck(queues: Iterable[str]) -> dict[str, int]:
    """Return the stuck queues with the seconds since their last pulse; empty while Redis is away."""
    try:
        found = {queue: seconds_stuck(redis_connection(), queue) for queue in queues}
    except redis.RedisError:
        return {}
    return {queue: seconds for queue, seconds in found.items() if seconds}
