"""Conditions shown at the top of every page: components that don't answer, policies that are not in force."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.utils import timezone

from broker_core.documents.problems import ProblemEntry
from broker_core.documents.stalls import CAUSES, StallEntry
from broker_core.names import CLIENTS_TOPIC, DECISIONS_TOPIC, LEDGER_TOPIC
from console import current_instance
from console.models import Alert, Instance, RevisionReport
from console.queries import policies
from console.queries.readiness import DATABASE_PREFIX, ComponentStatus, check_components, problem_name
from console.units import format as formats

RESTART_REPORT_TIME = timedelta(minutes=15)
"""Time for which every page shows a restart. Time axes show it longer."""
APPLY_TIMEOUT = timedelta(seconds=5)
"""Time that a broker has to apply a revision before pages report a delay."""
ALERT = "alert"
"""Key of a condition for an open alert."""
STUCK = "queue_stuck"
"""Beginning of the problem text of a queue that does not progress."""
MAX_ALERTS = 5
"""Maximum open alerts shown."""
_since: dict[str, float] = {}
"""Moments since which this process has missed Redis, worker or broker, in seconds since 1970.

No other component records them.
"""


class SystemCondition(NamedTuple):
    """Condition of the system that operators should know about.

    since     moment at which it began, or for an event (`is_event`) at which it happened
    blind     whether pages may show outdated data of clients
    is_event  whether it happened once and is over
    """

    key: str
    word: str
    sentence: str
    fix: str
    since: datetime | None
    severe: bool
    blind: bool = False
    is_event: bool = False


_PARTS = {  # worst first
    "broker": (
        "The broker doesn't answer",
        "Clients can't be listed or acted on. Pages show the last known state.",
        "Check that the broker runs, and read log/broker.log.",
    ),
    "redis": (
        "Redis doesn't answer",
        "Pages don't update, and scheduled actions don't run.",
        "Check that Redis runs, and read log/redis.log.",
    ),
    "worker": (
        "No worker answers",
        "Archiving, schedules and other runs are delayed.",
        "Check that the worker runs, and read log/worker.log.",
    ),
}
"""Title, sentence and fix for an unavailable component, worst first."""


_DATABASE_OF_BROKER = {
    "policy_from_disk": (
        "The broker {} runs the policy on its own disk",
        "The broker can't read the database, so it receives no policy changes.",
    ),
    "policy_not_stored": (
        "The broker {} can't store its policy on its own disk",
        "The broker can't start while the database is unavailable.",
    ),
    "database_away": (
        "The broker {} can't use the database",
        "The broker retains its policy. Decisions, losses and events are buffered in memory.",
    ),
}
"""Title and sentence for a problem of a broker with the database, by code."""


def current_conditions() -> list[SystemCondition]:
    """Return the current conditions, worst first; empty if there are none.

    Checks each component with short timeouts.
    """
    instance = Instance.objects.filter(name=current_instance.instance_name()).first()
    parts, local_name = check_components(write=False), current_instance.instance_name()
    mark_available("database")  # the query above succeeded
    missed = [
        part
        for part in parts
        if "entry" not in part
        and _is_unavailable(part["name"], ok=part["ok"] and STUCK not in part["problem"])
    ]
    found = [
        _away(name, instance) if STUCK not in part["problem"] else _stuck(part, "Runs and alerts")
        for name in _PARTS
        for part in missed
        if part["name"] == name
    ]
    brokers = [part for part in parts if part["name"].partition(" ")[0] == "broker"]
    # Without an answer from any broker the further conditions are unknown.
    if instance is None or any(one.key == "broker" for one in found):
        return found
    local_brokers = [
        part for part in brokers if part["name"].removeprefix("broker ").partition("/")[0] == local_name
    ]
    blind = bool(local_brokers) and not any(part["ok"] for part in local_brokers)
    away = {_member_name(part): part for part in missed if part in local_brokers}
    found += [_broker_unavailable(part, instance, member, blind=blind) for member, part in away.items()]
    found += [
        _no_worker(part) if STUCK not in part["problem"] else _stuck(part, "Journals and schedules")
        for part in missed
        if part["name"] == "worker chores" or _instance_after("worker ", part) == local_name
    ]
    found += [
        _no_database(part, local_name)
        for part in missed
        if _instance_after(DATABASE_PREFIX, part) in ("", local_name)
    ]
    if blind:
        return found
    found += _problems(
        [part["entry"] for part in parts if "entry" in part and _is_problem_of(part, local_name)], away
    )
    found += [_stood_still(part) for part in local_brokers or brokers if _is_recent(part.get("stall"))]
    found += [_dropped_rows(part) for part in local_brokers or brokers if _has_dropped_rows(part)]
    # Members that do not answer are reported above; the policy status is that of the others.
    state = policies.policy_status(instance, without=away)
    return [
        *found,
        *_restarted(instance),
        *_not_in_force(instance, state),
        *_withdrawn(state),
        *_alerts(instance),
    ]


def _is_unavailable(name: str, *, ok: bool) -> bool:
    """Return whether a component is unavailable, and remember since when."""
    if ok:
        mark_available(name)
    else:
        unavailable_since(name)
    return not ok


def unavailable_since(name: str) -> datetime:
    """Return the moment since which a component has been unavailable; now if it was available before."""
    return datetime.fromtimestamp(_since.setdefault(name, time.time()), UTC)


def mark_available(name: str) -> None:
    """Record that a component is available."""
    _since.pop(name, None)


def _away(name: str, instance: Instance | None) -> SystemCondition:
    """Return the condition of an unavailable component."""
    word, sentence, fix = _PARTS[name]
    since = unavailable_since(name)
    if name == "broker" and instance is not None:
        since = min(since, last_report_time(instance) or since)
    return SystemCondition(name, word, sentence, fix, since, severe=name != "worker", blind=name != "worker")


def _member_name(part: ComponentStatus) -> str:
    return part["name"].removeprefix("broker ").partition("/")[2]


def _broker_unavailable(
    part: ComponentStatus, instance: Instance, member: str, *, blind: bool
) -> SystemCondition:
    """Return the condition for one of several brokers that does not answer."""
    name, missed = part["name"].removeprefix("broker "), unavailable_since(part["name"])
    since = min(missed, last_report_time(instance, member) or missed)
    return SystemCondition(
        part["name"],
        f"The broker {name} doesn't answer ({part['problem']})",
        "Its clients can't be listed or acted on, and are missing from lists and totals.",
        part.get("fix", ""),
        since,
        severe=True,
        blind=blind,
    )


def _is_recent(stall: StallEntry | None) -> bool:
    """Return whether a stall ended within `RESTART_REPORT_TIME`."""
    if stall is None:
        return False
    ended = datetime.fromtimestamp((stall.at + stall.lasted_ms) / 1_000, UTC)
    return timezone.now() - ended < RESTART_REPORT_TIME


def _stood_still(part: ComponentStatus) -> SystemCondition:
    """Return the condition of a recent stall of a broker's event loop."""
    stall, member = part["stall"], _member_name(part)
    text, subject = CAUSES[stall.cause], f"The broker {member}" if member else "The broker"
    return SystemCondition(
        f"stall {member}".rstrip(),
        f"{subject} stalled for {formats.duration(stall.lasted_ms)} ({stall.cause})",
        text.meaning,
        f"{text.fix} See Decisions for its last work.",
        datetime.fromtimestamp(stall.at / 1_000, UTC),
        severe=False,
        is_event=True,
    )


def _has_dropped_rows(part: ComponentStatus) -> bool:
    """Return whether a broker discarded rows for the database within `RESTART_REPORT_TIME`."""
    entry = part.get("database")
    if entry is None or entry.dropped_at is None:
        return False
    return timezone.now() - datetime.fromtimestamp(entry.dropped_at / 1_000, UTC) < RESTART_REPORT_TIME


def _dropped_rows(part: ComponentStatus) -> SystemCondition:
    """Return the condition of a broker that discarded decisions, losses or events for the database."""
    entry, member = part["database"], _member_name(part)
    return SystemCondition(
        f"dropped {member}".rstrip(),
        f"Decisions{f' of {member}' if member else ''} are missing in the console",
        f"The broker discarded {formats.number_exact(entry.dropped)} decisions, losses and events since its "
        "start: it made them faster than the database stored them. It also published them on the topics "
        f"{DECISIONS_TOPIC}, {LEDGER_TOPIC} and {CLIENTS_TOPIC}.",
        "Check the database and the rules that act so often.",
        datetime.fromtimestamp((entry.dropped_at or 0) / 1_000, UTC),
        severe=False,
        is_event=True,
    )


def _instance_after(prefix: str, part: ComponentStatus) -> str | None:
    """Return the instance of the broker whose name follows a prefix; "" for a single broker without a name.

    None if the component's name has another prefix.
    """
    if not part["name"].startswith(prefix):
        return None
    return part["name"].removeprefix(prefix).strip().partition("/")[0]


def _is_problem_of(part: ComponentStatus, instance: str) -> bool:
    return part["name"] == problem_name(instance, part["entry"])


def _problems(problems: Collection[ProblemEntry], away: Collection[str]) -> list[SystemCondition]:
    """Return the conditions of a group and its links.

    A member that does not answer the console either is listed only once.
    """
    return [
        SystemCondition(
            f"{one.code} {one.subject}".rstrip(),
            f"{one.title} ({one.code})",
            one.message,
            one.fix,
            datetime.fromtimestamp(one.since / 1_000, UTC),
            severe=one.severe,
        )
        for one in problems
        if not (one.code == "member_silent" and one.subject in away)
    ]


def _no_worker(part: ComponentStatus) -> SystemCondition:
    """Return the condition of a queue without a worker."""
    name = part["name"].removeprefix("worker ")
    queue = "the chores" if name == "chores" else f"the journal of {name}"
    waits = (
        "Archiving, schedules and alert checks are delayed."
        if name == "chores"
        else "Actions on its segments are delayed."
    )
    return SystemCondition(
        part["name"],
        f"No worker serves {queue}",
        waits,
        part.get("fix", ""),
        unavailable_since(part["name"]),
        severe=False,
    )


def _no_database(part: ComponentStatus, local_name: str) -> SystemCondition:
    """Return the condition of a broker that can't use the database, or runs the policy on its own disk."""
    name = part["name"].removeprefix(DATABASE_PREFIX).strip() or local_name
    word, sentence = _DATABASE_OF_BROKER.get(part["problem"], _DATABASE_OF_BROKER["database_away"])
    since = (
        datetime.fromtimestamp(part["since"] / 1_000, UTC)
        if "since" in part
        else unavailable_since(part["name"])
    )
    return SystemCondition(
        part["name"],
        word.format(name),
        sentence,
        part.get("fix", ""),
        since,
        severe=True,
    )


def _stuck(part: ComponentStatus, waiting: str) -> SystemCondition:
    """Return the condition of a worker that is present but starts no tasks."""
    return SystemCondition(
        part["name"],
        f"The queue of the {part['name'].removeprefix('worker ')} doesn't move",
        f"{waiting} wait: all of its slots are in use.",
        part.get("fix", ""),
        unavailable_since(part["name"]),
        severe=False,
    )


def last_report_time(instance: Instance, member: str = "") -> datetime | None:
    """Return the moment of the last report of the instance's broker, or of a group member."""
    rows = RevisionReport.objects.filter(instance=instance, **({"member": member} if member else {}))
    newest = rows.order_by("-seen_at").first()
    return newest.seen_at if newest is not None else None


def broker_restarts(instance: Instance, since: datetime) -> list[datetime]:
    """Return the moments at which a broker began to report from a new process.

    The first start does not count.
    """
    rows = RevisionReport.objects.filter(instance=instance).order_by("reported_at", "pk")
    before = rows.filter(reported_at__lt=since)
    # a later row overwrites an earlier one, so the last pid of each member remains
    running = dict(before.values_list("member", "pid"))
    found: list[datetime] = []
    for at, member, pid in (
        rows.filter(reported_at__gte=since).values_list("reported_at", "member", "pid").iterator(2_000)
    ):
        if running.setdefault(member, pid) != pid:
            found.append(at)
        running[member] = pid
    return found


def _restarted(instance: Instance) -> list[SystemCondition]:
    newest = broker_restarts(instance, timezone.now() - RESTART_REPORT_TIME)[-1:]
    return [
        SystemCondition(
            "restart",
            "The broker was restarted",
            "Clients log on again. State in memory, such as delivery accounts and health, was reset.",
            "",
            at,
            severe=False,
            is_event=True,
        )
        for at in newest
    ]


def _alerts(instance: Instance) -> list[SystemCondition]:
    """Return conditions for open alerts.

    Only the rules' names are shown, since not every account may see every client.
    """
    rows = Alert.objects.filter(rule__instance=instance, closed_at=None).exclude(opened_at=None)
    return [
        SystemCondition(
            ALERT,
            f"Alert: {alert.rule.name}",
            f"{alert.rule.get_about_display().capitalize()}.",
            "See Alerts.",
            alert.begun_at,
            severe=False,
        )
        for alert in rows.select_related("rule")[:MAX_ALERTS]
    ]


def _withdrawn(state: policies.PolicyStatus) -> list[SystemCondition]:
    """Return the condition for a staged revision that was withdrawn automatically, until the policy changes
    again.
    """
    rollout = state["withdrawn"]
    if rollout is None:
        return []
    number, base = rollout.revision.number, rollout.base.number
    return [
        SystemCondition(
            "rollout",
            f"Staged revision {number} was withdrawn",
            f"{rollout.why} Revision {base} is back for all.",
            "See Policies and the decisions.",
            rollout.ended_at,
            severe=False,
            is_event=True,
        )
    ]


def is_overdue(instance: Instance) -> bool:
    """Return whether brokers have had enough time to apply the newest revision."""
    newest = policies.newest_revision(instance)
    return newest is None or timezone.now() - newest.created_at >= APPLY_TIMEOUT


def _not_in_force(instance: Instance, state: policies.PolicyStatus) -> list[SystemCondition]:
    """Return the condition for a newest revision that is not in force. Unavailable members are excluded."""
    if state["converged"] or not is_overdue(instance):
        return []
    newest = policies.newest_revision(instance)
    since = newest.created_at if newest is not None else None
    return [
        SystemCondition(
            "policy",
            f"Revision {state['wanted']} isn't in force",
            state["why"],
            "See Policies.",
            since,
            severe=True,
        )
    ]
