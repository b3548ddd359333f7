"""Events become runs: what happened is held against the triggers of enabled actions, and each that fits gets a run.

Nothing is lost silently: an action with too many runs waiting takes no more, and how often that happened is counted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.utils import timezone

from console.choices import ActorKind, RunKind, RunState
from console.models import Action, ActionRun, Instance
from console.services import runs
from console.services.actions.triggers import Event, fires
from console.services.actions.variables import beginning
from console.services.actors import Actor

logger = logging.getLogger(__name__)

MOST_WAITING = 100
"""Runs of one action that may wait."""
MOST_DEPTH = 8
"""How often events may raise each other."""

refused: Counter[str] = Counter()
"""By action: events of this process that made no run because too many waited."""


def happened(
    instance: Instance, events: Sequence[Event], *, depth: int = 0, member: str = ""
) -> list[ActionRun]:
    """The runs that these events start. `member`: of a group, who heard them; of an event that all hear one run is made."""
    started = []
    actions = [action for action in Action.objects.filter(instance=instance, enabled=True) if action.when]
    for event in events:
        for action in actions:
            trigger = next((one for one in action.when if fires(one, event)), None)
            if trigger is not None and (run := _start(action, trigger, event, depth, member)) is not None:
                started.append(run)
    return started


def start(
    actor: Actor,
    action: Action,
    trigger: Mapping[str, Any],
    variables: Mapping[str, str],
    now: datetime,
    **more: Any,
) -> ActionRun:
    """A run of an action, with its steps as they are now. The moment in its variables is this one."""
    context = beginning(action.instance.name, now, variables)
    parameters = {
        "action": action.name,
        "version": action.version,
        "steps": action.steps,
        "variables": context,
    }
    return runs.request(
        actor, action.instance, RunKind.ACTION, parameters,
        **{"action": action, "trigger": dict(trigger), "needs_approval": action.needs_approval, **more},
    )  # fmt: skip


def _start(
    action: Action, trigger: Mapping[str, Any], event: Event, depth: int, member: str
) -> ActionRun | None:
    if ActionRun.objects.filter(action=action, state=RunState.WAITING).count() >= MOST_WAITING:
        refused[action.name] += 1
        logger.warning(
            "action %s: %d runs wait already; this %s starts none", action.name, MOST_WAITING, event.kind
        )
        return None
    actor = Actor(ActorKind.ACTION, action.name)
    once = runs.Once.of(f"{action.pk}|{event.once}"[:200]) if event.once else None
    if once is not None and runs.made_before(actor, once) is not None:
        return None
    return start(
        actor, action, {**trigger, "depth": depth}, event.variables, timezone.now(), member=member, once=once
    )
