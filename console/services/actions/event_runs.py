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

from broker_core.errors import OperatorError
from console.choices import ActorKind, RunKind, RunState
from console.models import Action, ActionRun, Instance
from console.services import runs
from console.services.actions import causes as behind
from console.services.actions import chains, planner
from console.services.actions.triggers import TriggerEvent
from console.services.actions.variables import initial_variables
from console.services.actors import Actor

logger = logging.getLogger(__name__)

MAX_WAITING = 100
"""Runs of one action that may wait."""

refused: Counter[str] = Counter()
"""By action: events of this process that made no run because too many waited."""


def start_runs_for_events(
    instance: Instance,
    events: Sequence[TriggerEvent],
    *,
    depth: int = 0,
    member: str = "",
    actor: Actor | None = None,
    causes: Sequence[behind.Cause] = (),
    planned: bool = False,
) -> list[ActionRun]:
    """Start the runs that these events are for, and return them.

    member   of a group, the one that heard them; of an event that all hear one run is made
    actor    who raised them; None when a broker noticed them
    causes   the people and clients behind them, besides the actor
    planned  whether the actor has seen a plan of all that they start

    Raises OperatorError plan_needed, before any run starts, when `actor` is somebody who has seen no plan of
    an action that takes something away.
    """
    found = [
        (action, trigger, event) for event in events for action, trigger in chains.listening(instance, event)
    ]
    if actor is not None and behind.asks(actor) and not planned:
        for action, *_ in found:
            refuse_unplanned(action)
    started = (_start(*one, depth, member, actor, causes) for one in found)
    return [run for run in started if run is not None]


def refuse_unplanned(action: Action) -> None:
    """Raise OperatorError plan_needed when an action, or one that it starts, takes something away."""
    if chains.is_destructive(action.instance, action.steps):
        raise OperatorError(
            "plan_needed",
            f"{action.name} removes something or cuts somebody off.",
            "Plan it first, and send the plan's hash as `plan`.",
        )


def start_run(
    actor: Actor,
    action: Action,
    trigger: Mapping[str, Any],
    variables: Mapping[str, str],
    now: datetime,
    **more: Any,
) -> ActionRun:
    """Ask for a run of an action, with its steps as they are now. The moment in its variables is this one.

    What takes something away is planned here, unless the caller did: it is what a second person approves.
    """
    context = initial_variables(action.instance.name, now, variables)
    if "plan" not in more and chains.is_destructive(action.instance, action.steps):
        more["plan"] = planner.plan_steps(action.instance, action.steps, context)
        # A run that nobody asks for and nobody approves starts at once: what becomes due meanwhile is meant too.
        if (
            behind.asks(actor)
            or action.needs_approval
            or runs.waits_for_approval(RunKind.ACTION, {"steps": action.steps})
        ):
            more["plan_hash"] = more["plan"]["hash"]
    if not behind.asks(actor):
        more["causes"] = behind.joined(more.get("causes", ()), behind.of_editor(action))
    parameters = {
        "action": action.name,
        "version": action.version,
        "steps": action.steps,
        "variables": context,
    }
    return runs.request(
        actor,
        action.instance,
        RunKind.ACTION,
        parameters,
        **{"action": action, "trigger": dict(trigger), "needs_approval": action.needs_approval, **more},
    )


def _start(
    action: Action,
    trigger: Mapping[str, Any],
    event: TriggerEvent,
    depth: int,
    member: str,
    raised_by: Actor | None,
    causes: Sequence[behind.Cause],
) -> ActionRun | None:
    if ActionRun.objects.filter(action=action, state=RunState.WAITING).count() >= MAX_WAITING:
        refused[action.name] += 1
        logger.warning(
            "action %s: %d runs wait already; this %s starts none", action.name, MAX_WAITING, event.kind
        )
        return None
    actor = (
        raised_by
        if raised_by is not None and behind.asks(raised_by)
        else Actor(ActorKind.ACTION, action.name)
    )
    once = runs.IdempotencyKey.for_request(f"{action.pk}|{event.once}"[:200]) if event.once else None
    if once is not None and runs.find_by_key(actor, once) is not None:
        return None
    now = timezone.now()
    return start_run(
        actor,
        action,
        {**trigger, "depth": depth},
        event.variables,
        now,
        member=member,
        once=once,
        causes=behind.joined(causes, behind.of_event(event, now)),
    )
