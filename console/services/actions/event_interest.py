"""Triggers that the broker's process must watch, and runs for its events. Called in the broker's threads."""

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
    """Events that enabled actions wait for.

    kinds         kinds of events
    messages      messages: kind, topic pattern, filter
    file_systems  file systems: place, percent
    """

    kinds: frozenset[str] = frozenset()
    messages: frozenset[tuple[str, str, str]] = frozenset()
    file_systems: frozenset[tuple[str, str]] = frozenset()


def on_broker_started(instance_name: str, member: str = "") -> EventInterest:
    """Record that the broker has started, start runs of actions on startup, and return the events to watch.

    Schedules with intervals count from this start. In a group they count from the first start of its first
    member, so that a restarted member doesn't move them.
    """
    _fresh_connection()
    rows = Instance.objects.filter(name=instance_name)
    (rows.filter(started_at=None) if member else rows).update(started_at=timezone.now())
    start_runs_for_events(instance_name, [TriggerEvent("startup")], member)
    return event_interest(instance_name)


def event_interest(instance_name: str) -> EventInterest:
    """Return the events that enabled actions of an instance wait for."""
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
    """Start the runs for these events in one transaction, and return their number.

    The caller retries after an error.
    """
    _fresh_connection()
    instance = Instance.objects.filter(name=instance_name).first()
    if instance is None:
        return 0
    with transaction.atomic():
        return len(event_runs.start_runs_for_events(instance, found, member=member))


def disk_usage_percent(file_systems: Iterable[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """Return how full each file system is, in percent. A file system that can't be examined is left out."""
    found: dict[tuple[str, str], float] = {}
    for file_system, above in file_systems:
        with suppress(OperatorError):
            found[file_system, above] = percent_used(file_system)
    return found


def _fresh_connection() -> None:
    """Close dead database connections before use.

    Threads of the broker live for weeks, without the requests at whose end Django closes such connections.
    """
    if not connection.in_atomic_block:
        close_old_connections()
