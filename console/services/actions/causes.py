"""The people and clients who caused a run. The two-person rule forbids them to approve it.

A cause is stored with the run as {"kind", "name", "user_id"}: a person, a token (with its account's id), or
a client (`user` is the name with which it logged on). A run without a requester (started by a schedule or
by a broker's event) has the person who last changed the action as its cause. A message published through
the control plane is stored as topic and time; the audit knows its publisher.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from broker_core.names import BROKER_NAME, RESERVED_PREFIX
from console.choices import ActorKind, AuditResult
from console.models import Action, ActionRun, AuditEvent
from console.services.actions.triggers import TriggerEvent
from console.services.actors import Actor

PUBLISHED: Final = "message.publish"
"""Audit action of a message that was published through the control plane."""
MAX_AUDIT_DELAY: Final = timedelta(minutes=15)
"""Maximum time between a message and its audit event, including differences between clocks."""
_RUNS_AT_ONCE: Final = 500
"""Runs whose causes are read per query."""
Cause = Mapping[str, Any]
_REQUESTERS: Final = (ActorKind.PERSON, ActorKind.TOKEN)


def is_requester(actor: Actor) -> bool:
    """Return whether the actor is a person or a token, and not a schedule, a broker or the system."""
    return actor.kind in _REQUESTERS


def causes_from_actor(actor: Actor) -> list[Cause]:
    """Return the cause for a person's or token's request; empty for other actors."""
    return (
        [{"kind": str(actor.kind), "name": actor.name, "user_id": actor.user_id}]
        if is_requester(actor)
        else []
    )


def causes_from_editor(action: Action) -> list[Cause]:
    """Return the cause for a run without a requester: the person who last changed the action."""
    if not action.changed_by:
        return []
    return [{"kind": "editor", "name": action.changed_by, "user_id": action.changed_by_user_id}]


def causes_from_event(event: TriggerEvent, now: datetime) -> list[Cause]:
    """Return the cause of a broker's event: a client, or a publish through the control plane.

    A publish carries the message's time (ms since 1970), because the run may start much later. `now` is used
    if the event has no time.
    """
    publisher, topic = event.facts.get("publisher", ""), event.variables.get("AMPS_TOPIC", "")
    if publisher == BROKER_NAME:
        at_ms = int(event.facts.get("accepted_at_ms") or now.timestamp() * 1_000)
        return (
            [] if topic.startswith(RESERVED_PREFIX) else [{"kind": "publish", "name": topic, "at_ms": at_ms}]
        )
    name = publisher or event.variables.get("AMPS_CLIENT_NAME", "")
    user = event.facts.get("user") or event.variables.get("AMPS_AUTHENTICATION_ID", "")
    return [{"kind": "client", "name": name, "user": user}] if name else []


def merge_causes(*causes: Sequence[Cause]) -> list[dict[str, Any]]:
    """Return causes in order, without duplicates."""
    found: list[dict[str, Any]] = []
    for one in causes:
        found += [dict(cause) for cause in one if cause not in found]
    return found


def is_behind(actor: Actor, run: ActionRun) -> bool:
    """Return whether the actor is among the causes of a run. An actor without an account counts as one."""
    if actor.user_id is None or actor.user_id == run.actor_user_id:
        return True
    return any(_is(actor, cause) for cause in _with_publishers(run))


def _is(actor: Actor, cause: Cause) -> bool:
    if cause.get("user_id") is not None:
        return bool(cause["user_id"] == actor.user_id)
    account = actor.name.partition(" by token ")[0]
    return account in (cause.get("user"), str(cause.get("name", "")).partition(" by token ")[0])


def _with_publishers(run: ActionRun) -> Iterator[Cause]:
    """Yield a run's causes and, for messages, everyone who published on their topics around their times.

    A failed attempt to publish counts too: possibly only its reply was lost. If a run published the
    message, that run's causes follow.
    """
    for cause in run.causes:
        yield cause
        if cause["kind"] != "publish":
            continue
        at = datetime.fromtimestamp(cause["at_ms"] / 1_000, UTC)
        rows = AuditEvent.objects.filter(
            action=PUBLISHED,
            object=f"{run.instance.name}: topic {cause['name']}"[:300],
            at__range=(at - MAX_AUDIT_DELAY, at + MAX_AUDIT_DELAY),
        ).exclude(result=AuditResult.DENIED)
        for actor in rows.order_by("actor").values_list("actor", flat=True).distinct():
            yield {"kind": "publisher", "name": actor}
        by_runs = rows.filter(after__has_key="run").order_by("after__run")
        numbers = list(by_runs.values_list("after__run", flat=True).distinct())
        for first in range(0, len(numbers), _RUNS_AT_ONCE):
            found = ActionRun.objects.filter(pk__in=numbers[first : first + _RUNS_AT_ONCE])
            for causes in found.values_list("causes", flat=True):
                yield from causes
