"""Steps on journals. The journal service does the work; this module makes it steps of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from console.choices import JOURNAL_ACTIONS
from console.models import Instance
from console.services import journals
from console.services.actions.step_context import Options, StepContext, StepHandler, StepPlan, StepResult
from console.units.ages import parse_age


@dataclass(slots=True)
class RunStep:
    """View of a run that has only one of its steps, as the services expect it."""

    kind: str
    parameters: dict[str, Any]
    instance: Instance
    member: str
    pk: UUID
    plan: Any = None
    plan_hash: str = ""


def plan_journal_step(kind: str, instance: Instance, options: Options) -> StepPlan:
    """Return the plan of a journal step, with segments chosen and skipped."""
    in_lake = options.get("which") == "lake"
    found = journals.plan(kind, options["age"], instance.name, in_lake=in_lake)
    count = len(found["chosen"])
    which = "that the lake has" if in_lake else ""
    sentence = f"{kind} {count} segment{'' if count == 1 else 's'} older than {found['age']}{which}"
    return StepPlan(sentence, plan_promise(found), {"plan": found})


def plan_promise(found: dict[str, Any]) -> Any:
    """Return the values of a journal plan that count for its hash: the chosen segments. Sizes may change."""
    return [found["action"], found["age_s"], found["chosen"]]


def _perform(kind: str, context: StepContext, options: Options) -> StepResult:
    """Perform an archive, compress or remove step, and return its result with the numbers as variables."""
    age_s = parse_age(options["age"])
    parameters = {"age": options["age"], "age_s": age_s, "in_lake": options.get("which") == "lake"}
    part = RunStep(kind, parameters, context.instance, context.run.member, context.run.pk)
    result = journals.perform_run(part, context.progress)  # type: ignore[arg-type]
    variables = {
        "SLUICE_SEGMENTS": str(len(result.get("segments", ()))),
        "SLUICE_BYTES": str(result.get("bytes", 0)),
    }
    return StepResult(result, variables)


STEPS = {
    str(kind): StepHandler(partial(plan_journal_step, str(kind)), partial(_perform, str(kind)))
    for kind in JOURNAL_ACTIONS
}
