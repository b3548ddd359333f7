"""Carries out an action's steps, in order, in a worker. The first that fails, or whose condition doesn't hold, ends it.

What became of each step is in the row before the next begins, so that a run whose worker was killed is repeated from
the step it was in.
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
from console.services.actions.variables import Variables, expand_all
from console.services.actors import Actor
from console.services.run_progress import RunCancelled, RunProgress


class PutBack(Exception):
    """A run that waits again, because another holds what its next step needs. Not an error."""


def perform_run(
    run: ActionRun, progress: RunProgress, happened: Callable[..., list[ActionRun]]
) -> dict[str, Any]:
    """Carry out a run; `happened` starts the runs of events that steps raise.

    Raises a failing step's error, Cancelled, or PutBack when a step must wait for another run.
    """
    parts: list[dict[str, str]] = run.parameters["steps"]
    actor = Actor(ActorKind(run.actor_kind), run.actor, run.actor_user_id)
    scene = StepContext(
        run.instance, actor, run, progress, dict(run.parameters["variables"]), happened=happened
    )
    for record in run.steps:
        scene.variables |= record.get("variables", {})
    for number, part in enumerate(parts):
        if number < len(run.steps):
            continue  # a repetition: done by the run before
        scene.number = number
        _, kind = definition.part_kind(part)
        if not runs.prepare_step(run):
            raise PutBack
        progress.stage(number, len(parts), kind.label)
        if not _one(scene, part):
            progress.log("the condition doesn't hold: the rest is left out")
            break
    return {"steps": len(run.steps), "of": len(parts)}


def condition_holds(part: Mapping[str, str], variables: Variables) -> bool:
    """Whether an `if` holds now."""
    kind = conditions.KINDS[part["if"]]
    options = check_options(
        kind,
        expand_all(definition.part_options(part), variables, lambda name: False),
        kind.label,
        expanded=True,
    )
    return conditions.is_condition_met(kind.name, options, variables, percent_used)


def percent_used(place: str) -> float:
    """How full the file system of one of our directories is, in percent of what may be used."""
    home = settings.SLUICE_HOME if place == "home" else getattr(settings, f"SLUICE_{place.upper()}_DIRECTORY")
    try:
        usage = shutil.disk_usage(home)
    except OSError as problem:
        raise OperatorError(
            "no_file_system",
            f"The directory of {place} can't be examined: {problem}.",
            "Check that it exists.",
        ) from None
    # As `df` counts: what only root may use is neither used nor free.
    return 100.0 * usage.used / (usage.used + usage.free) if usage.used + usage.free else 0.0


def _one(scene: StepContext, part: Mapping[str, str]) -> bool:
    """One condition or step, and its record. False when the rest is to be left out."""
    word, kind = definition.part_kind(part)
    began = time.monotonic()
    record: dict[str, Any] = {word: kind.name}
    try:
        if word == "if":
            holds = condition_holds(part, scene.variables)
            record["state"] = "held" if holds else "not_held"
            return holds
        options = expand_all(
            definition.part_options(part), scene.variables, lambda name: kind.option(name).raw
        )
        done: StepResult = STEPS[kind.name].perform(
            scene, check_options(kind, options, kind.label, expanded=True)
        )
        record |= {"state": "done", "result": dict(done.result), "variables": dict(done.variables)}
        scene.variables |= done.variables
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
            scene.run.steps = [*scene.run.steps, record]
            ActionRun.objects.filter(pk=scene.run.pk).update(steps=scene.run.steps)
