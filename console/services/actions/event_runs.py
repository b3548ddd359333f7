"""Runs started by events: each enabled action with a matching trigger gets a run.

An action with `MAX_WAITING` waiting runs gets no more. Such events are logged and counted in `refused`.
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
"""Maximum waiting runs of one action."""

refused: Counter[str] = Counter()
"""Events of this process that started no run because too many waited, counted by action."""


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
    """Start the runs that events trigger, and return them.

    Args:
        instance: The instance of the events.
        events: The events.
        depth: How many events have caused each other before these.
        member: In a group, the member that noticed the events. An event that all members notice makes one
            run.
        actor: The actor that raised the events; None if a broker noticed them.
        causes: People and clients behind the events, besides the actor.
        planned: Whether the actor has seen a plan of everything that the events start.

    Raises:
        OperatorError: `plan_needed`, before any run starts, if a person or token that has seen no plan
            would start an action that removes something or disconnects clients.
    """
    found = [
        (action, trigger, event)
        for event in events
        for action, trigger in chains.triggered_actions(instance, event)
    ]
    if actor is not None and behind.is_requester(actor) and not planned:
        for action, *_ in found:
            refuse_unplanned(action)
    started = (_start(*one, depth, member, actor, causes) for one in found)
    return [run for run in started if run is not None]


def refuse_unplanned(action: Action) -> None:
    """Raise OperatorError `plan_needed` if the action, or one that it starts, is destructive."""
    if chains.is_destructive(action.instance, action.steps):
        raise OperatorError(
            "plan_needed",
            f"{action.name} removes data or disconnects clients.",
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
    """Request a run of an action with its present steps and variables.

    A destructive action is planned here unless the caller did (`plan` in `more`): a second person approves
    that plan.

    Args:
        actor: Requester of the run.
        action: The action.
        trigger: Its trigger.
        variables: Variables that the trigger gives.
        now: The present time, for the run's time variables.
        **more: Other arguments of `runs.request`.

    Raises:
        OperatorError: the errors of `runs.request`.
    """
    context = initial_variables(action.instance.name, now, variables)
    if "plan" not in more and chains.is_destructive(action.instance, action.steps):
        more["plan"] = planner.plan_steps(action.instance, action.steps, context)
        # Only a run with a requester or an approver is bound to its plan. Any other run starts immediately,
        # and also works on objects that become due after the plan.
        if (
            behind.is_requester(actor)
            or action.needs_approval
            or runs.waits_for_approval(RunKind.ACTION, {"steps": action.steps})
        ):
            more["plan_hash"] = more["plan"]["hash"]
    if not behind.is_requester(actor):
        more["causes"] = behind.merge_causes(more.get("causes", ()), behind.causes_from_editor(action))
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
    author: Actor | None,
    causes: Sequence[behind.Cause],
) -> ActionRun | None:
    """Start the run of one action for an event; None if too many wait or the event has a run already."""
    if ActionRun.objects.filter(action=action, state=RunState.WAITING).count() >= MAX_WAITING:
        refused[action.name] += 1
        logger.warning(
            "action %s: %d runs are waiting; this %s starts none", action.name, MAX_WAITING, event.kind
        )
        return None
    actor = (
        author if author is not None and behind.is_requester(author) else Actor(ActorKind.ACTION, action.name)
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
        causes=behind.merge_causes(causes, behind.causes_from_event(event, now)),
    )
