"""The people and clients behind a run, for the two-person rule: none of them may approve it.

A cause is kept with the run as {"kind", "name", "user_id"}: a person, a token (by its account), or a client
(`user` is the name it logged on with). Runs that nobody asks for (on a schedule, on what a broker noticed) name
who last changed the action. A message that the control plane published names its topic and its moment: who
published it is in the audit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from broker_core.names import BROKER_NAME, OWN
from console.choices import ActorKind, AuditResult
from console.models import Action, ActionRun, AuditEvent
from console.services.actions.triggers import TriggerEvent
from console.services.actors import Actor

PUBLISHED: Final = "message.publish"
"""The audit's word for a message that was published through the control plane."""
HEARD_WITHIN: Final = timedelta(minutes=15)
"""The longest time between a message and the audit's event of its publishing, different clocks included."""
_RUNS_AT_ONCE: Final = 500
Cause = Mapping[str, Any]
_ASKS: Final = (ActorKind.PERSON, ActorKind.TOKEN)


def asks(actor: Actor) -> bool:
    """Return whether somebody asks, rather than a schedule, a broker or the system."""
    return actor.kind in _ASKS


def of_actor(actor: Actor) -> list[Cause]:
    """Return the cause of what somebody asks for; none for what nobody asks for."""
    return [{"kind": str(actor.kind), "name": actor.name, "user_id": actor.user_id}] if asks(actor) else []


def of_editor(action: Action) -> list[Cause]:
    """Return the cause of what an action does by itself: the person who last changed it."""
    if not action.changed_by:
        return []
    return [{"kind": "editor", "name": action.changed_by, "user_id": action.changed_by_user_id}]


def of_event(event: TriggerEvent, now: datetime) -> list[Cause]:
    """Return the client, or the publish through the control plane, that a broker's event came from.

    A publish has its message's moment, milliseconds since 1970: the run may start much later.
    """
    publisher, topic = event.facts.get("publisher", ""), event.variables.get("AMPS_TOPIC", "")
    if publisher == BROKER_NAME:
        at_ms = int(event.facts.get("accepted_at_ms") or now.timestamp() * 1_000)
        return [] if topic.startswith(OWN) else [{"kind": "publish", "name": topic, "at_ms": at_ms}]
    name = publisher or event.variables.get("AMPS_CLIENT_NAME", "")
    user = event.facts.get("user") or event.variables.get("AMPS_AUTHENTICATION_ID", "")
    return [{"kind": "client", "name": name, "user": user}] if name else []


def joined(*causes: Sequence[Cause]) -> list[dict[str, Any]]:
    """Return causes without repetitions, the first first."""
    found: list[dict[str, Any]] = []
    for one in causes:
        found += [dict(cause) for cause in one if cause not in found]
    return found


def is_behind(actor: Actor, run: ActionRun) -> bool:
    """Return whether somebody is among those who caused a run. Nobody in particular always is."""
    if actor.user_id is None or actor.user_id == run.actor_user_id:
        return True
    return any(_is(actor, cause) for cause in _with_publishers(run))


def _is(actor: Actor, cause: Cause) -> bool:
    if cause.get("user_id") is not None:
        return bool(cause["user_id"] == actor.user_id)
    account = actor.name.partition(" by token ")[0]
    return account in (cause.get("user"), str(cause.get("name", "")).partition(" by token ")[0])


def _with_publishers(run: ActionRun) -> Iterator[Cause]:
    """Yield a run's causes, and who published, or tried to, on its messages' topics about their moments.

    An attempt that failed counts: its answer may have been lost, and not the message.
    """
    for cause in run.causes:
        yield cause
        if cause["kind"] != "publish":
            continue
        at = datetime.fromtimestamp(cause["at_ms"] / 1_000, UTC)
        rows = AuditEvent.objects.filter(
            action=PUBLISHED,
            object=f"{run.instance.name}: topic {cause['name']}"[:300],
            at__range=(at - HEARD_WITHIN, at + HEARD_WITHIN),
        ).exclude(result=AuditResult.DENIED)
        for actor in rows.order_by("actor").values_list("actor", flat=True).distinct():
            yield {"kind": "publisher", "name": actor}
        by_runs = rows.filter(after__has_key="run").order_by("after__run")
        numbers = list(by_runs.values_list("after__run", flat=True).distinct())
        for first in range(0, len(numbers), _RUNS_AT_ONCE):
            found = ActionRun.objects.filter(pk__in=numbers[first : first + _RUNS_AT_ONCE])
            for causes in found.values_list("causes", flat=True):
                yield from causes
