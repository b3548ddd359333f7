"""What the broker's process needs of actions: what to hear, and runs for what was heard. Called in its threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from django.db import close_old_connections, connection, transaction
from django.utils import timezone

from broker_core.errors import OperatorError
from console.models import Action, Instance
from console.services.actions import event_runs
from console.services.actions.executor import percent_used
from console.services.actions.triggers import IN_THE_BROKER, TriggerEvent


@dataclass(frozen=True, slots=True)
class EventInterest:
    """Kinds of events, messages (kind, topic, filter), and file systems (place, percent) that enabled actions wait for."""

    kinds: frozenset[str] = frozenset()
    messages: frozenset[tuple[str, str, str]] = frozenset()
    file_systems: frozenset[tuple[str, str]] = frozenset()


def on_broker_started(instance_name: str, member: str = "") -> EventInterest:
    """The broker has started: intervals count from now, and actions on its start get their runs. Of a group from its first member's
    first start: the others go on while one is started again, and what is due among them doesn't move with it."""
    _fresh_connection()
    rows = Instance.objects.filter(name=instance_name)
    (rows.filter(started_at=None) if member else rows).update(started_at=timezone.now())
    start_runs_for_events(instance_name, [TriggerEvent("startup")], member)
    return event_interest(instance_name)


def event_interest(instance_name: str) -> EventInterest:
    """What enabled actions wait for."""
    _fresh_connection()
    kinds, messages, file_systems = set(), set(), set()
    for when in Action.objects.filter(instance__name=instance_name, enabled=True).values_list(
        "when", flat=True
    ):
        for trigger in when:
            kind = trigger["on"]
            if kind in (*IN_THE_BROKER, "journal_roll"):
                kinds.add(kind)
            elif kind in ("publish", "deliver"):
                messages.add((kind, trigger["topic"], trigger.get("filter", "")))
            elif kind == "file_system":
                file_systems.add((trigger["place"], trigger["above"]))
    return EventInterest(frozenset(kinds), frozenset(messages), frozenset(file_systems))


def start_runs_for_events(instance_name: str, found: Sequence[TriggerEvent], member: str = "") -> int:
    """Start the runs that these events are for; how many. All or none: whoever calls tries again after an error."""
    _fresh_connection()
    instance = Instance.objects.filter(name=instance_name).first()
    if instance is None:
        return 0
    with transaction.atomic():
        return len(event_runs.start_runs_for_events(instance, found, member=member))


def disk_usage_percent(file_systems: Iterable[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """How full each is, in percent; one that can't be looked at is left out."""
    found: dict[tuple[str, str], float] = {}
    for place, above in file_systems:
        with suppress(OperatorError):
            found[place, above] = percent_used(place)
    return found


def _fresh_connection() -> None:
    """Threads of the broker live for weeks, without the requests at whose ends Django drops dead connections."""
    if not connection.in_atomic_block:
        close_old_connections()
