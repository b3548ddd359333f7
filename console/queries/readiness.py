"""Whether the parts answer: database, Redis, broker, worker. Each says in a word what is wrong."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import redis
from django.conf import settings
from django.db import DatabaseError, connection

from broker_core.documents.instance import InstanceStatus
from broker_core.documents.requests import GetStatus
from console.broker_addresses import queue_of
from console.broker_link import Told, addresses_of, ask
from console.live.workers import key_of, queues_stuck, without_worker
from console.queries.brokers import instances
from console.queue_names import CHORES_QUEUE, USUAL_QUEUE

WORKER_KEY = key_of("")


class Part(TypedDict):
    """One part's state; `problem` is a code, where it has one, and then `fix` says what to do."""

    name: str
    ok: bool
    problem: str
    fix: NotRequired[str]


def readiness() -> list[Part]:
    """Ask each part, with short time-outs."""
    alive, worker = _redis()
    return [_database(), alive, worker, *(_workers() if alive["ok"] else []), *_brokers()]


def _database() -> Part:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as problem:
        return {"name": "database", "ok": False, "problem": type(problem).__name__}
    return {"name": "database", "ok": True, "problem": ""}


def _redis() -> tuple[Part, Part]:
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
            worker = bool(client.exists(WORKER_KEY))
    except (redis.RedisError, OSError) as problem:
        name = type(problem).__name__
        return (
            {"name": "redis", "ok": False, "problem": name},
            {"name": "worker", "ok": False, "problem": "unknown while Redis is away"},
        )
    alive: Part = {"name": "redis", "ok": True, "problem": ""}
    if not worker:
        return alive, {"name": "worker", "ok": False, "problem": "no worker was heard for 15 s"}
    return alive, _moving("worker", queues_stuck([USUAL_QUEUE]).get(USUAL_QUEUE, 0))


def _workers() -> list[Part]:
    """Return a part for each queue with a worker of its own: whether one is there, and whether the queue moves."""
    remote = {queue_of(one): one.name for one in settings.SLUICE_BROKERS if one.path is None}
    queues = {CHORES_QUEUE: "chores", **remote}
    missed, stuck = without_worker(queues), queues_stuck(queues)
    return [
        {
            "name": f"worker {name}", "ok": False, "problem": "no_worker",
            "fix": f"Start one{there(queue)}: celery -A console.project worker -Q {queue}",
        }
        if queue in missed
        else _moving(f"worker {name}", stuck.get(queue, 0))
        for queue, name in queues.items()
    ]  # fmt: skip


def there(queue: str) -> str:
    """Say where the worker of a queue is started: nothing for this machine's."""
    return "" if queue == CHORES_QUEUE else " there"


def _moving(name: str, stuck_s: int) -> Part:
    """Say of a worker that is there whether its queue moves."""
    if not stuck_s:
        return {"name": name, "ok": True, "problem": ""}
    return {
        "name": name, "ok": False, "problem": f"queue_stuck: nothing was taken up for {stuck_s} s",
        "fix": "See which runs hold its slots, and cancel them; or whether beat runs.",
    }  # fmt: skip


def _brokers() -> list[Part]:
    """Each broker that this process is told of; of one alone there isn't a name."""
    told = ask([one for name in instances() for one in addresses_of(name)], GetStatus(), timeout_s=2.0)
    return [_part(f"broker {one.address.name}" if len(told) > 1 else "broker", one) for one in told]


def _part(name: str, told: Told[InstanceStatus]) -> Part:
    if told.error is None:
        return {"name": name, "ok": True, "problem": ""}
    # By what it ended, if it said so.
    code = told.error.details.get("ended", told.error.code)
    return {"name": name, "ok": False, "problem": code, "fix": told.error.fix}
