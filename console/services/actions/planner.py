"""What an action would do, step by step, and the hash that `apply` holds it to. Changes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from broker_core.errors import OperatorError
from console.models import ActionRun, Instance
from console.services import journals
from console.services.actions import definition
from console.services.actions.chains import is_destructive, listening
from console.services.actions.executor import condition_holds
from console.services.actions.options import check_options
from console.services.actions.steps import STEPS
from console.services.actions.steps.journals import plan_promise
from console.services.actions.triggers import TriggerEvent
from console.services.actions.variables import Variables, expand_all

MOMENT = ("AMPS_DATETIME", "AMPS_UNIX_TIMESTAMP")
"""Variables that differ at every look: they don't make a plan another one."""


def plan_steps(
    instance: Instance, steps: Sequence[Mapping[str, str]], variables: Variables
) -> dict[str, Any]:
    """{"steps": [{"step", "kind", "sentence", …}], "destructive", "hash"}. A step that can't be planned says why."""
    known = dict(variables)
    planned, promised = [], []
    for number, part in enumerate(steps):
        word, kind = definition.part_kind(part)
        entry, counted = _planned(instance, part, known)
        planned.append(
            {"step": number, word: kind.name, "label": kind.label, "destructive": kind.destructive, **entry}
        )
        promised.append(counted)
        known |= {
            name: "{{" + name + "}}" for name in kind.gives
        }  # a step's variables are known when it has run
    given = {name: text for name, text in variables.items() if name not in MOMENT}
    return {
        "steps": planned,
        "destructive": is_destructive(instance, steps),
        "hash": plan_hash([list(map(dict, steps)), given, promised]),
    }


def event_plan(instance: Instance, event: TriggerEvent, variables: Mapping[str, str]) -> dict[str, Any]:
    """Plan all that an event would start: each action's plan, and one hash of them all."""
    plans = [
        {"action": action.name, **plan_steps(instance, action.steps, variables)}
        for action, _ in listening(instance, event)
    ]
    return {
        "actions": plans,
        "destructive": any(one["destructive"] for one in plans),
        "hash": plan_hash([[one["action"], one["hash"]] for one in plans]),
    }


def plan_hash(promise: Any) -> str:
    """A plan's hash: equal for equal promises, whatever the order of keys."""
    return hashlib.sha256(
        json.dumps(promise, sort_keys=True, separators=(",", ":"), default=str).encode()
    ).hexdigest()


def journal_plan(
    action: str, age: str | int, instance_name: str | None = None, *, in_lake: bool = False, member: str = ""
) -> dict[str, Any]:
    """A journal action's plan with its hash."""
    found = journals.plan(action, age, instance_name, in_lake=in_lake, member=member)
    return {**found, "hash": plan_hash(plan_promise(found))}


def check_plan_hash(expected: str, found: str) -> None:
    """Raise OperatorError plan_changed unless the plan is still the one that somebody saw."""
    if expected != found:
        raise OperatorError(
            "plan_changed",
            "What would be done has changed since the plan was made.",
            "Plan again.",
            hash=found,
        )


def check_run_plan(run: ActionRun) -> None:
    """The same for a run in its worker: it may have waited for approval for days."""
    if run.plan_hash:
        check_plan_hash(run.plan_hash, plan_of_rest(run, run.steps)["hash"])


def plan_of_rest(run: ActionRun, done: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The plan of what a run has still to do, after the steps that were done."""
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
    word, kind = definition.part_kind(part)
    options = expand_all(definition.part_options(part), variables, lambda name: kind.option(name).raw)
    try:
        options = check_options(kind, options, kind.label)
        if word == "if":
            now = (
                "holds now"
                if condition_holds(part, variables)
                else "doesn't hold now: the run would end here"
            )
            return {"sentence": f"{kind.label}: {now}"}, None
        found = STEPS[kind.name].plan(instance, options)
    except OperatorError as problem:
        return {"sentence": problem.sentence, "problem": problem.as_dict()}, problem.code
    return {"sentence": found.sentence, **found.details}, found.counts
