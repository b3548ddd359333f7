"""Whether the parts answer: database, Redis, broker, worker. Each says in a word what is wrong."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import redis
from django.conf import settings

from broker_core.documents.instance import InstanceStatus
from broker_core.documents.requests import GetStatus
from console.broker_addresses import queue_of
from console.broker_link import Told, addresses_of, ask
from console.live.workers import key_of, without_worker
from console.queries.brokers import instances
from console.queries.database import database_problem, reading_problem

WORKER_KEY = key_of("")
DATABASE_OF = "database of broker"
"""Name of the part that says how a broker's database is; with the broker's name where there are several."""


class Part(TypedDict):
    """One part's state; `problem` is a code, where it has one, and then `fix` says what to do."""

    name: str
    ok: bool
    problem: str
    fix: NotRequired[str]


def readiness(*, write: bool = True) -> list[Part]:
    """Ask each part, with short time-outs.

    `write=False`: without a write to the database, for pages. Brokers write each ten seconds, and say how that goes.
    """
    alive, worker = _redis()
    return [_database(write=write), alive, worker, *(_workers() if alive["ok"] else []), *_brokers()]


def _database(*, write: bool = True) -> Part:
    problem = database_problem() if write else reading_problem()
    if problem is None:
        return {"name": "database", "ok": True, "problem": ""}
    return {"name": "database", "ok": False, "problem": problem.code, "fix": problem.fix}


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
    missing = "" if worker else "no worker was heard for 15 s"
    return {"name": "redis", "ok": True, "problem": ""}, {"name": "worker", "ok": worker, "problem": missing}


def _workers() -> list[Part]:
    """Of each broker on another machine: whether a worker is there for its journal."""
    queues = {queue_of(one): one.name for one in settings.SLUICE_BROKERS if queue_of(one)}
    missed = without_worker(queues)
    return [
        {"name": f"worker {name}", "ok": False, "problem": "no_worker", "fix": f"Start one there: celery -A console.project worker -Q {queue}"}
        if queue in missed
        else {"name": f"worker {name}", "ok": True, "problem": ""}
        for queue, name in queues.items()
    ]  # fmt: skip


def _brokers() -> list[Part]:
    """Each broker that this process is told of; of one alone there isn't a name."""
    told = ask([one for name in instances() for one in addresses_of(name)], GetStatus(), timeout_s=2.0)
    several = len(told) > 1
    parts = [_part(f"broker {one.address.name}" if several else "broker", one) for one in told]
    return parts + [part for one in told for part in _database_of(one, several=several)]


def _database_of(told: Told[InstanceStatus], *, several: bool) -> list[Part]:
    """Return a part for a broker that can't use the database, or runs the policy on its own disk."""
    entry = told.answer.database if told.answer is not None else None
    if entry is None or not entry.code:
        return []
    name = f"{DATABASE_OF}{f' {told.address.name}' if several else ''}"
    return [{"name": name, "ok": False, "problem": entry.code, "fix": entry.fix}]


def _part(name: str, told: Told[InstanceStatus]) -> Part:
    if told.error is None:
        return {"name": name, "ok": True, "problem": ""}
    # By what it ended, if it said so.
    code = told.error.details.get("ended", told.error.code)
    return {"name": name, "ok": False, "problem": code, "fix": told.error.fix}
