"""Plans of actions: the effect of each step, and a hash that `apply` must repeat.

Planning changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from broker_core.errors import OperatorError
from console.models import ActionRun, Instance
from console.services import journals
from console.services.actions import definition
from console.services.actions.chains import is_destructive, triggered_actions
from console.services.actions.executor import condition_holds
from console.services.actions.options import check_options
from console.services.actions.steps import STEPS
from console.services.actions.steps.journals import plan_promise
from console.services.actions.triggers import TriggerEvent
from console.services.actions.variables import Variables, expand_options

MOMENT = ("AMPS_DATETIME", "AMPS_UNIX_TIMESTAMP")
"""Variables that differ at each plan, and so don't count for its hash."""


def plan_steps(
    instance: Instance, steps: Sequence[Mapping[str, str]], variables: Variables
) -> dict[str, Any]:
    """Return the plan of an action's steps.

    Returns:
        {"steps": [{"step", "kind", "sentence", …}], "destructive", "hash"}. A step that can't be planned
            has the reason.
    """
    known = dict(variables)
    planned, promised = [], []
    for number, part in enumerate(steps):
        word, kind = definition.part_kind(part)
        entry, counted = _planned(instance, part, known)
        planned.append(
            {"step": number, word: kind.name, "label": kind.label, "destructive": kind.destructive, **entry}
        )
        promised.append(counted)
        # The variables of a step have no values before it has run.
        known |= {name: "{{" + name + "}}" for name in kind.gives}
    stable = {name: text for name, text in variables.items() if name not in MOMENT}
    return {
        "steps": planned,
        "destructive": is_destructive(instance, steps),
        "hash": plan_hash([list(map(dict, steps)), stable, promised]),
    }


def event_plan(instance: Instance, event: TriggerEvent, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the plans of all actions that an event starts, and one hash of them."""
    plans = [
        {"action": action.name, **plan_steps(instance, action.steps, variables)}
        for action, _ in triggered_actions(instance, event)
    ]
    return {
        "actions": plans,
        "destructive": any(one["destructive"] for one in plans),
        "hash": plan_hash([[one["action"], one["hash"]] for one in plans]),
    }


def plan_hash(promise: Any) -> str:
    """Return the hash of a plan's promise. The order of keys doesn't matter."""
    return hashlib.sha256(
        json.dumps(promise, sort_keys=True, separators=(",", ":"), default=str).encode()
    ).hexdigest()


def journal_plan(
    action: str, age: str | int, instance_name: str | None = None, *, in_lake: bool = False, member: str = ""
) -> dict[str, Any]:
    """Return a journal action's plan with its hash."""
    found = journals.plan(action, age, instance_name, in_lake=in_lake, member=member)
    return {**found, "hash": plan_hash(plan_promise(found))}


def check_plan_hash(expected: str, found: str) -> None:
    """Raise OperatorError `plan_changed` unless the plan's hash is the one that the requester saw."""
    if expected != found:
        raise OperatorError(
            "plan_changed",
            "The effect of the action has changed since the plan was made.",
            "Plan again.",
            hash=found,
        )


def check_run_plan(run: ActionRun) -> None:
    """Raise OperatorError `plan_changed` if a run's plan has changed, for example while it awaited approval.

    Does nothing for a run that isn't bound to a plan.
    """
    if run.plan_hash:
        check_plan_hash(run.plan_hash, plan_remaining_steps(run, run.steps)["hash"])


def plan_remaining_steps(run: ActionRun, done: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the plan of a run's remaining steps, after the steps in `done`."""
    if "steps" in run.parameters:
        variables = dict(run.parameters["variables"])
        for record in done:
            variables |= record.get("variables", {})
        return plan_steps(run.instance, run.parameters["steps"][len(done) :], variables)
    in_lake = bool(run.parameters.get("in_lake"))
    return journal_plan(
        run.kind, run.parameters["age_s"], run.instance.name, in_lake=in_lake, member=run.member
    )


def _planned(instance: Instance, part: Mapping[str, str], variables: Variables) -> tuple[dict[str, Any], Any]:
    """Return the plan of one part, and its contribution to the hash."""
    word, kind = definition.part_kind(part)
    options = expand_options(definition.part_options(part), variables, lambda name: kind.option(name).raw)
    try:
        options = check_options(kind, options, kind.label)
        if word == "if":
            now = "holds now" if condition_holds(part, variables) else "is false now: the run would end here"
            return {"sentence": f"{kind.label}: {now}"}, None
        found = STEPS[kind.name].plan(instance, options)
    except OperatorError as problem:
        return {"sentence": problem.sentence, "problem": problem.as_dict()}, problem.code
    return {"sentence": found.sentence, **found.details}, found.counts
