"""Execution of an action's steps, in order, in a worker. A failed step or an unmet condition ends the run.

The outcome of each step is stored before the next step starts. So a run whose worker was killed can be
repeated from the step that was interrupted.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings

from broker_core.errors import OperatorError, SluiceError
from console.choices import ActorKind
from console.models import ActionRun
from console.services import runs
from console.services.actions import conditions, definition
from console.services.actions.options import check_options
from console.services.actions.step_context import StepContext, StepResult
from console.services.actions.steps import STEPS
from console.services.actions.variables import Variables, expand_options
from console.services.actors import Actor
from console.services.run_progress import RunCancelled, RunProgress


class PutBack(Exception):
    """Raised when the run must wait again, because another run holds a lock for its next step.

    Not a failure.
    """


def perform_run(
    run: ActionRun, progress: RunProgress, happened: Callable[..., list[ActionRun]]
) -> dict[str, Any]:
    """Perform the steps of a run, and return how many were done.

    Args:
        run: The run.
        progress: Receives log and progress.
        happened: Starts runs for the events that steps raise.

    Raises:
        OperatorError: the error of a failed step.
        RunCancelled: the run was cancelled.
        PutBack: the next step must wait for another run.
    """
    parts: list[dict[str, str]] = run.parameters["steps"]
    actor = Actor(ActorKind(run.actor_kind), run.actor, run.actor_user_id)
    context = StepContext(
        run.instance, actor, run, progress, dict(run.parameters["variables"]), happened=happened
    )
    for record in run.steps:
        context.variables |= record.get("variables", {})
    for number, part in enumerate(parts):
        if number < len(run.steps):
            continue  # done before: a repeated run, or one that waited between steps
        context.number = number
        _, kind = definition.part_kind(part)
        if not runs.prepare_step(run):
            raise PutBack
        progress.stage(number, len(parts), kind.label)
        if not _one(context, part):
            progress.log("the condition is false: the remaining steps are skipped")
            break
    return {"steps": len(run.steps), "of": len(parts)}


def condition_holds(part: Mapping[str, str], variables: Variables) -> bool:
    """Whether a condition ("if") is met now."""
    kind = conditions.KINDS[part["if"]]
    options = check_options(
        kind,
        expand_options(definition.part_options(part), variables, lambda name: False),
        kind.label,
        expanded=True,
    )
    return conditions.is_condition_met(kind.name, options, variables, percent_used)


def percent_used(name: str) -> float:
    """Return how full the file system of one of Sluice's directories is, in percent of the usable space."""
    home = settings.SLUICE_HOME if name == "home" else getattr(settings, f"SLUICE_{name.upper()}_DIRECTORY")
    try:
        usage = shutil.disk_usage(home)
    except OSError as problem:
        raise OperatorError(
            "no_file_system",
            f"The directory of {name} can't be examined: {problem}.",
            "Check that it exists.",
        ) from None
    # Like `df`: space reserved for root is neither used nor free.
    return 100.0 * usage.used / (usage.used + usage.free) if usage.used + usage.free else 0.0


def _one(context: StepContext, part: Mapping[str, str]) -> bool:
    """Perform one condition or step, and store its record.

    Return False if the remaining steps must be skipped.
    """
    word, kind = definition.part_kind(part)
    began = time.monotonic()
    record: dict[str, Any] = {word: kind.name}
    try:
        if word == "if":
            holds = condition_holds(part, context.variables)
            record["state"] = "held" if holds else "not_held"
            return holds
        options = expand_options(
            definition.part_options(part), context.variables, lambda name: kind.option(name).raw
        )
        done: StepResult = STEPS[kind.name].perform(
            context, check_options(kind, options, kind.label, expanded=True)
        )
        record |= {"state": "done", "result": dict(done.result), "variables": dict(done.variables)}
        context.variables |= done.variables
        return True
    except RunCancelled:
        record["state"] = "cancelled"
        raise
    except SluiceError as problem:
        record |= {"state": "failed", "error": problem.as_dict()}
        raise
    finally:
        record["took_ms"] = round((time.monotonic() - began) * 1000)
        if "state" in record:
            context.run.steps = [*context.run.steps, record]
            ActionRun.objects.filter(pk=context.run.pk).update(steps=context.run.steps)
