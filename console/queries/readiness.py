"""Whether the parts answer: database, Redis, broker, worker. Each says in a word what is wrong."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import redis
from django.conf import settings
from django.db import DatabaseError, connection

from broker_core.documents.instance import InstanceStatus
from broker_core.documents.problems import ProblemEntry
from broker_core.documents.requests import GetStatus
from broker_core.documents.stalls import StallEntry
from broker_core.names import LINK_PREFIX
from console import broker_merge
from console.broker_addresses import queue_of
from console.broker_link import Told, addresses_of, ask
from console.live.workers import key_of, without_worker
from console.queries.brokers import instances

WORKER_KEY = key_of("")


class Part(TypedDict):
    """State of one part; `problem` is a code, where it has one, and then `fix` says what to do.

    `since`: ms UTC. A problem of a group or a link is a part with its `entry`; it isn't ok if it is severe.
    """

    name: str
    ok: bool
    problem: str
    fix: NotRequired[str]
    since: NotRequired[int]
    entry: NotRequired[ProblemEntry]
    stall: NotRequired[StallEntry]
    """Of a broker: the newest stall of its event loop."""


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
    brokers = [_part(f"broker {one.address.name}" if len(told) > 1 else "broker", one) for one in told]
    return [*brokers, *(part for name in instances() for part in _problems(name, told))]


def _problems(instance: str, told: list[Told[InstanceStatus]]) -> list[Part]:
    answers = [one.answer for one in told if one.answer is not None and one.address.instance == instance]
    return [
        {
            "name": problem_name(instance, one),
            "ok": not one.severe,
            "problem": one.code,
            "fix": one.fix,
            "since": one.since,
            "entry": one,
        }
        for one in broker_merge.problems(answers)
    ]  # fmt: skip


def problem_name(instance: str, problem: ProblemEntry) -> str:
    """Return the name of a problem's part: `group INSTANCE/MEMBER`, `group INSTANCE` or `link INSTANCE/NAME`."""
    if problem.subject.startswith(LINK_PREFIX):
        return f"link {instance}/{problem.subject.removeprefix(LINK_PREFIX)}"
    return f"group {instance}/{problem.subject}" if problem.subject else f"group {instance}"


def _part(name: str, told: Told[InstanceStatus]) -> Part:
    if told.error is None:
        stall = told.answer.stalls.last if told.answer is not None else None
        return {"name": name, "ok": True, "problem": ""} | ({"stall": stall} if stall is not None else {})
    # By what it ended, if it said so.
    code = told.error.details.get("ended", told.error.code)
    return {"name": name, "ok": False, "problem": code, "fix": told.error.fix}
