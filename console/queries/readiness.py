"""Whether the parts answer: database, Redis, broker, worker. Each says in a word what is wrong."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, NotRequired, TypedDict

import redis
from django.conf import settings
from django.db import Error
from django.utils import timezone

from broker_core.control import set_back
from broker_core.documents.instance import InstanceStatus
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
DATABASE_OF = "database of broker"
"""Name of the part that says how a broker's database is; with the broker's name where there are several."""


class ComponentStatus(TypedDict):
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


def check_components(*, write: bool = True) -> list[ComponentStatus]:
    """Ask each part, with short time-outs.

    `write=False`: without a write to the database, for pages. Brokers write each ten seconds, and say how that goes.
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
    """Return how Redis is, and whether a worker was heard. `write`: with a small write, which a full or
    read-only Redis refuses."""
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
            {"name": "worker", "ok": False, "problem": "unknown while Redis is away"},
        )
    alive: ComponentStatus = {"name": "redis", "ok": True, "problem": ""}
    if refused:
        fix = f"Give it memory or room on its disk, or name one that may be written to: {refused}"
        alive = {"name": "redis", "ok": False, "problem": REDIS_REFUSES, "fix": fix}
    if not worker:
        return alive, {"name": "worker", "ok": False, "problem": "no worker was heard for 15 s"}
    stuck_s = queues_stuck([USUAL_QUEUE]).get(USUAL_QUEUE, 0)
    return alive, _moving("worker", stuck_s, busy=bool(stuck_s) and _works())


def _workers() -> list[ComponentStatus]:
    """Return a part for each queue with a worker of its own: whether one is there, and whether the queue moves."""
    remote = {queue_for_broker(one): one.name for one in settings.SLUICE_BROKERS if one.path is None}
    queues = {CHORES_QUEUE: "chores", **remote}
    missed, stuck = queues_without_worker(queues), queues_stuck(queues)
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


def _works() -> bool:
    """Return whether a job or an action was heard lately. It may hold a usual slot for hours."""
    heard = ActionRun.objects.filter(
        state=RunState.RUNNING,
        kind__in=(RunKind.PIPELINE, RunKind.ACTION),
        heard_at__gt=timezone.now() - timedelta(seconds=STUCK_S),
    )
    try:
        return heard.exists()
    except Error:  # the database's own part says so
        return False


def _moving(name: str, stuck_s: int, *, busy: bool = False) -> ComponentStatus:
    """Say of a worker that is there whether its queue moves. One that is busy with runs is ok all the same."""
    if not stuck_s:
        return {"name": name, "ok": True, "problem": ""}
    return {
        "name": name, "ok": busy, "problem": f"queue_stuck: nothing was taken up for {stuck_s} s",
        "fix": "See which runs hold its slots, and cancel them; or whether beat runs.",
    }  # fmt: skip


def _brokers() -> list[ComponentStatus]:
    """Each broker that this process is told of; of one alone there isn't a name."""
    told = ask_brokers(
        [one for name in instances() for one in addresses_of(name)], GetStatus(), timeout_s=2.0
    )
    several = len(told) > 1
    brokers = [_part(f"broker {one.address.name}" if several else "broker", one) for one in told]
    databases = [part for one in told for part in _database_of(one, several=several)]
    return [*brokers, *databases, *(part for name in instances() for part in _problems(name, told))]


def _database_of(told: BrokerAnswer[InstanceStatus], *, several: bool) -> list[ComponentStatus]:
    """Return a part for a broker that can't use the database, or runs the policy on its own disk."""
    entry = told.answer.database if told.answer is not None else None
    if entry is None or not entry.code:
        return []
    name = f"{DATABASE_OF}{f' {told.address.name}' if several else ''}"
    part: ComponentStatus = {"name": name, "ok": False, "problem": entry.code, "fix": entry.fix}
    return [part if entry.away_since is None else part | {"since": entry.away_since}]


def _problems(instance: str, told: list[BrokerAnswer[InstanceStatus]]) -> list[ComponentStatus]:
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
        for one in group_answers.problems(answers)
    ]  # fmt: skip


def problem_name(instance: str, problem: ProblemEntry) -> str:
    """Return the name of a problem's part: `group INSTANCE/MEMBER`, `group INSTANCE`, `link INSTANCE/NAME` or
    `policy INSTANCE`."""
    if problem.subject == set_back.SUBJECT:
        return f"policy {instance}"
    if problem.subject.startswith(LINK_PREFIX):
        return f"link {instance}/{problem.subject.removeprefix(LINK_PREFIX)}"
    return f"group {instance}/{problem.subject}" if problem.subject else f"group {instance}"


def _part(name: str, told: BrokerAnswer[InstanceStatus]) -> ComponentStatus:
    if told.error is None:
        stall = told.answer.stalls.last if told.answer is not None else None
        part: ComponentStatus = {"name": name, "ok": True, "problem": ""}
        if stall is not None:
            part["stall"] = stall
        return part
    # By what it ended, if it said so.
    code = told.error.details.get("ended", told.error.code)
    return {"name": name, "ok": False, "problem": code, "fix": told.error.fix}
