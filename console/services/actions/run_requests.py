"""Requests for runs of actions: by id with a plan, by the path of an API request, or by an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone

from broker_core.errors import OperatorError
from console.choices import Permission, RunKind
from console.models import Action, ActionRun, Instance
from console.services import access, audit, journals, runs
from console.services.actions import chains, event_runs, planner
from console.services.actions.triggers import TriggerEvent
from console.services.actions.variables import MAX_CHARACTERS, MAX_VARIABLES, initial_variables
from console.services.actors import Actor
from console.services.runs import IdempotencyKey

BY_HAND = {"on": "hand"}
"""Trigger of a run that an operator started."""


def plan_action(action: Action, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the action would do now, and the hash for `apply_action`.

    Raises OperatorError `bad_parameters`.
    """
    checked = check_variables(variables)
    return planner.plan_steps(
        action.instance, action.steps, initial_variables(action.instance.name, timezone.now(), checked)
    )


def apply_action(
    actor: Actor,
    action: Action,
    variables: Mapping[str, Any],
    plan_hash: str,
    *,
    trigger: Mapping[str, str] | None = None,
    once: IdempotencyKey | None = None,
) -> ActionRun:
    """Request a run of an action.

    Args:
        actor: Requester of the run.
        action: The action.
        variables: Variables of the run.
        plan_hash: Hash of the plan that the requester has seen; "" for none.
        trigger: Trigger of the run; an operator by default.
        once: Idempotency key of the request.

    Raises:
        OperatorError: `plan_needed` for a destructive action without a hash, `plan_changed`,
            `bad_parameters`, and the errors of `runs.request`.
    """
    checked = check_variables(variables)
    if once is not None and (known := runs.find_by_key(actor, once)) is not None:
        return known
    if not plan_hash:
        event_runs.refuse_unplanned(action)
    made = plan_action(action, checked)
    if plan_hash:
        planner.check_plan_hash(plan_hash, made["hash"])
    return event_runs.start_run(
        actor, action, trigger or BY_HAND, checked, timezone.now(), plan=made, plan_hash=plan_hash, once=once
    )


def event_plan(instance: Instance, name: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a custom event would start: each action's plan, and one hash for `raise_event`."""
    event = _event(name, variables)
    context = initial_variables(instance.name, timezone.now(), event.variables)
    return planner.event_plan(instance, event, context)


def raise_event(
    actor: Actor, instance: Instance, name: str, variables: Mapping[str, Any], plan_hash: str = ""
) -> list[ActionRun]:
    """Raise a custom event, and return the runs that it starts. `actor` is their requester.

    Raises:
        OperatorError: `plan_needed` if a run would be destructive and there is no hash, or `plan_changed`.
    """
    event = _event(name, variables)
    if plan_hash:
        planner.check_plan_hash(plan_hash, event_plan(instance, name, variables)["hash"])
    with transaction.atomic():
        audit.record(
            actor, "action.event", f"{instance.name}: event {name}", after=check_variables(variables)
        )
        return event_runs.start_runs_for_events(instance, [event], actor=actor, planned=bool(plan_hash))


def repeat(actor: Actor, run: ActionRun, plan_hash: str = "") -> ActionRun:
    """Request a run again. If the remaining steps are destructive, the hash of their plan is needed.

    Raises:
        OperatorError: `plan_needed` with that plan and its hash, `plan_changed`, and the errors of
            `runs.repeat`.
    """
    done = runs.done_steps(run)
    remaining = {**run.parameters, "steps": run.parameters.get("steps", [])[len(done) :]}
    destructive = run.kind == RunKind.REMOVE or chains.is_destructive(run.instance, remaining["steps"])
    if not destructive:
        return runs.repeat(actor, run)
    access.require_permission(actor, Permission.RUN_ACTIONS, instance=run.instance.name)
    made = planner.plan_remaining_steps(run, done)
    if not plan_hash:
        raise OperatorError(
            "plan_needed",
            "The remaining steps remove data or disconnect clients.",
            "Request the plan, and send its hash as `plan`.",
            plan=made,
            hash=made["hash"],
        )
    planner.check_plan_hash(plan_hash, made["hash"])
    return runs.repeat(actor, run, plan=made, plan_hash=plan_hash)


def action_at_path(
    instance: Instance, path: str, variables: Mapping[str, Any]
) -> tuple[Action, dict[str, str]]:
    """Return the enabled action that answers API requests at a path, and its trigger.

    Raises:
        OperatorError: `unknown_path` or `parameter_missing`.
    """
    for action in Action.objects.filter(instance=instance, enabled=True).select_related("instance"):
        for trigger in action.when:
            if trigger["on"] == "request" and trigger["path"] == path:
                _check_parameters(trigger, variables)
                return action, trigger
    raise OperatorError(
        "unknown_path", f"No enabled action has the path {path[:64]!r}.", "See /api/v1/actions."
    )


def request_journal_run(
    actor: Actor,
    kind: str,
    age: str,
    plan_hash: str,
    instance_name: str | None = None,
    once: IdempotencyKey | None = None,
    *,
    in_lake: bool = False,
    member: str = "",
) -> ActionRun:
    """Request a journal action; only a removal needs the hash of its plan.

    Raises:
        OperatorError: `plan_needed` or `plan_changed`, and the errors of `journals.request`.
    """
    if plan_hash:
        return apply_journal_plan(
            actor, kind, age, plan_hash, instance_name, once, in_lake=in_lake, member=member
        )
    if kind == RunKind.REMOVE:
        raise OperatorError(
            "plan_needed",
            "Removal is irreversible.",
            "Request the plan (POST journals/remove/plan), and send its hash as `plan`.",
        )
    return journals.request(actor, kind, age, instance_name, once=once, in_lake=in_lake, member=member)


def apply_journal_plan(
    actor: Actor,
    kind: str,
    age: str,
    plan_hash: str,
    instance_name: str | None = None,
    once: IdempotencyKey | None = None,
    *,
    in_lake: bool = False,
    member: str = "",
) -> ActionRun:
    """Request a journal action on the segments of a plan.

    Raises OperatorError `plan_changed` if they differ now.
    """
    if once is not None and (known := runs.find_by_key(actor, once)) is not None:
        return known
    found = planner.journal_plan(kind, age, instance_name, in_lake=in_lake, member=member)
    planner.check_plan_hash(plan_hash, found["hash"])
    return journals.request(
        actor, kind, age, instance_name, plan_hash=plan_hash, once=once, in_lake=in_lake, member=member
    )


def check_variables(parameters: Any) -> dict[str, str]:
    """Return a request's parameters as variables. Raises OperatorError `bad_parameters`."""
    if not isinstance(parameters, Mapping) or len(parameters) > MAX_VARIABLES:
        raise _bad(f"Parameters must be an object of at most {MAX_VARIABLES} texts.")
    for name, value in parameters.items():
        if not (isinstance(name, str) and name.isascii() and name.isidentifier() and len(name) <= 100):
            raise _bad(f"{str(name)[:50]!r} can't be the name of a variable.")
        if (
            isinstance(value, bool)
            or not isinstance(value, str | int | float)
            or len(str(value)) > MAX_CHARACTERS
        ):
            raise _bad(f"{name} must be a text of up to {MAX_CHARACTERS:,} characters.")
    return {name: str(value) for name, value in parameters.items()}


def _event(name: str, variables: Mapping[str, Any]) -> TriggerEvent:
    return TriggerEvent("event", {**check_variables(variables), "SLUICE_EVENT": name})


def _check_parameters(trigger: Mapping[str, str], variables: Mapping[str, Any]) -> None:
    """Raise OperatorError `parameter_missing` if a parameter that the trigger requires is missing."""
    required = [name.strip() for name in trigger.get("parameters", "").split(",") if name.strip()]
    if missing := [name for name in required if variables.get(name) in (None, "")]:
        raise OperatorError(
            "parameter_missing",
            f"The request lacks {', '.join(missing)}.",
            "Send it in `parameters`.",
            missing=missing,
        )


def _bad(sentence: str) -> OperatorError:
    return OperatorError("bad_parameters", sentence, "Correct it and send it again.")
