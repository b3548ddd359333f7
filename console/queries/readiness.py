"""Readiness of the components: database, Redis, broker, worker. Each has a code for its problem."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, NotRequired, TypedDict

import redis
from django.conf import settings
from django.db import Error
from django.utils import timezone

from broker_core.control import set_back
from broker_core.documents.instance import DatabaseEntry, InstanceStatus
from broker_core.documents.problems import ProblemEntry
from broker_core.documents.requests import GetStatus
from broker_core.documents.stalls import StallEntry
from broker_core.names import LINK_PREFIX
from console import group_answers
from console.broker_addresses import queue_for_broker
from console.broker_link import BrokerAnswer, addresses_of, ask_brokers
from console.choices import RunKind, RunState
from console.live.workers import STUCK_S, queues_stuck, queues_without_worker, worker_key
from console.models import ActionRun
from console.queries.brokers import instances
from console.queries.database import database_problem, reading_problem
from console.queue_names import CHORES_QUEUE, USUAL_QUEUE

WORKER_KEY = worker_key("")
REDIS_REFUSES: Final = "redis_refuses_writes"
REDIS_PROBE: Final = "sluice:probe"
"""Key that is written to find a Redis that answers and stores nothing."""
DATABASE_PREFIX = "database of broker"
"""Name of the component that reports a broker's database, followed by the broker's name if there are
several.
"""


class ComponentStatus(TypedDict):
    """State of one component. `problem` is a code, where there is one, and `fix` says what to do.

    `since` is in ms UTC. A problem of a group or link is a component with its `entry`. It is not ok if the
    problem is severe.
    """

    name: str
    ok: bool
    problem: str
    fix: NotRequired[str]
    since: NotRequired[int]
    entry: NotRequired[ProblemEntry]
    stall: NotRequired[StallEntry]
    """Newest stall of the broker's event loop."""
    database: NotRequired[DatabaseEntry]
    """State of the database, as the broker sees it."""


def check_components(*, write: bool = True) -> list[ComponentStatus]:
    """Check each component with short timeouts.

    With `write=False`, for pages, nothing is written to the database. Brokers write every 10 seconds and
    report their errors.
    """
    alive, worker = _redis(write=write)
    return [
        _database(write=write),
        alive,
        worker,
        *(_workers() if alive["problem"] in ("", REDIS_REFUSES) else []),
        *_brokers(),
    ]


def _database(*, write: bool = True) -> ComponentStatus:
    problem = database_problem() if write else reading_problem()
    if problem is None:
        return {"name": "database", "ok": True, "problem": ""}
    return {"name": "database", "ok": False, "problem": problem.code, "fix": problem.fix}


def _redis(*, write: bool) -> tuple[ComponentStatus, ComponentStatus]:
    """Return the components of Redis and of the default queue's worker.

    `write`: with a small write, which a full or read-only Redis refuses.
    """
    refused = ""
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
            worker = bool(client.exists(WORKER_KEY))
            if write:
                try:
                    client.set(REDIS_PROBE, 1, ex=60)
                except redis.ResponseError as problem:
                    refused = str(problem)[:200]
    except (redis.RedisError, OSError) as problem:
        name = type(problem).__name__
        return (
            {"name": "redis", "ok": False, "problem": name},
            {"name": "worker", "ok": False, "problem": "unknown while Redis is unavailable"},
        )
    alive: ComponentStatus = {"name": "redis", "ok": True, "problem": ""}
    if refused:
        fix = f"Free memory or disk space for Redis, or configure a writable Redis: {refused}"
        alive = {"name": "redis", "ok": False, "problem": REDIS_REFUSES, "fix": fix}
    if not worker:
        return alive, {"name": "worker", "ok": False, "problem": "no worker has reported for 15 s"}
    stuck_s = queues_stuck([USUAL_QUEUE]).get(USUAL_QUEUE, 0)
    return alive, _moving("worker", stuck_s, busy=bool(stuck_s) and _works())


def _workers() -> list[ComponentStatus]:
    """Return a component per queue that has its own worker: whether a worker is present and its queue
    progresses.
    """
    remote = {queue_for_broker(one): one.name for one in settings.SLUICE_BROKERS if one.path is None}
    queues = {CHORES_QUEUE: "chores", **remote}
    missed, stuck = queues_without_worker(queues), queues_stuck(queues)
    return [
        {
            "name": f"worker {name}",
            "ok": False,
            "problem": "no_worker",
            "fix": f"Start one{worker_location_suffix(queue)}: celery -A console.project worker -Q {queue}",
        }
        if queue in missed
        else _moving(f"worker {name}", stuck.get(queue, 0))
        for queue, name in queues.items()
    ]


def worker_location_suffix(queue: str) -> str:
    """Return the suffix of a sentence that says where to start a queue's worker; "" for this machine."""
    return "" if queue == CHORES_QUEUE else " there"


def _works() -> bool:
    """Return whether a pipeline job or action reported recently.

    It may occupy a slot of the default queue for hours.
    """
    active_runs = ActionRun.objects.filter(
        state=RunState.RUNNING,
        kind__in=(RunKind.PIPELINE, RunKind.ACTION),
        heard_at__gt=timezone.now() - timedelta(seconds=STUCK_S),
    )
    try:
        return active_runs.exists()
    except Error:  # the database's own component reports this
        return False


def _moving(name: str, stuck_s: int, *, busy: bool = False) -> ComponentStatus:
    """Return whether a present worker's queue progresses. One that is busy with runs is ok."""
    if not stuck_s:
        return {"name": name, "ok": True, "problem": ""}
    return {
        "name": name,
        "ok": busy,
        "problem": f"queue_stuck: the workers started no task for {stuck_s} s",
        "fix": "Cancel the runs that use its slots, or check that beat runs.",
    }


def _brokers() -> list[ComponentStatus]:
    """Return a component per configured broker; a single broker has no name."""
    replies = ask_brokers(
        [one for name in instances() for one in addresses_of(name)], GetStatus(), timeout_s=2.0
    )
    several = len(replies) > 1
    brokers = [_part(f"broker {one.address.name}" if several else "broker", one) for one in replies]
    databases = [part for one in replies for part in _database_components(one, several=several)]
    return [*brokers, *databases, *(part for name in instances() for part in _problems(name, replies))]


def _database_components(reply: BrokerAnswer[InstanceStatus], *, several: bool) -> list[ComponentStatus]:
    """Return a component for a broker that can't use the database, or runs the policy on its own disk."""
    entry = reply.answer.database if reply.answer is not None else None
    if entry is None or not entry.code:
        return []
    name = f"{DATABASE_PREFIX}{f' {reply.address.name}' if several else ''}"
    part: ComponentStatus = {"name": name, "ok": False, "problem": entry.code, "fix": entry.fix}
    return [part if entry.away_since is None else part | {"since": entry.away_since}]


def _problems(instance: str, replies: list[BrokerAnswer[InstanceStatus]]) -> list[ComponentStatus]:
    answers = [one.answer for one in replies if one.answer is not None and one.address.instance == instance]
    return [
        {
            "name": problem_name(instance, one),
            "ok": not one.severe,
            "problem": one.code,
            "fix": one.fix,
            "since": one.since,
            "entry": one,
        }
        for one in group_answers.problems(answers)
    ]


def problem_name(instance: str, problem: ProblemEntry) -> str:
    """Return the component name of a problem.

    `group INSTANCE/MEMBER`, `group INSTANCE`, `link INSTANCE/NAME` or `policy INSTANCE`.
    """
    if problem.subject == set_back.SUBJECT:
        return f"policy {instance}"
    if problem.subject.startswith(LINK_PREFIX):
        return f"link {instance}/{problem.subject.removeprefix(LINK_PREFIX)}"
    return f"group {instance}/{problem.subject}" if problem.subject else f"group {instance}"


def _part(name: str, reply: BrokerAnswer[InstanceStatus]) -> ComponentStatus:
    """Return the component of a broker."""
    if reply.error is None:
        stall = reply.answer.stalls.last if reply.answer is not None else None
        part: ComponentStatus = {"name": name, "ok": True, "problem": ""}
        if stall is not None:
            part["stall"] = stall
        if reply.answer is not None and reply.answer.database is not None:
            part["database"] = reply.answer.database
        return part
    # the reason for its exit, if the broker reported one
    code = reply.error.details.get("ended", reply.error.code)
    return {"name": name, "ok": False, "problem": code, "fix": reply.error.fix}
