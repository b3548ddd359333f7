"""Context, plan and result of a step, and its handler: a plan, which changes nothing, and the execution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from console.broker_link import RequestChannel, link_to
from console.models import ActionRun, Instance
from console.services.actors import Actor
from console.services.run_progress import RunProgress

Options = Mapping[str, str]


@dataclass(slots=True)
class StepContext:
    """Context in which a step is performed. `number` is the step's index in the run, from 0."""

    instance: Instance
    actor: Actor
    run: ActionRun
    progress: RunProgress
    variables: dict[str, str] = field(default_factory=dict)
    number: int = 0
    happened: Callable[..., list[ActionRun]] = lambda *args, **more: []
    """Starts runs for events that a step raises.

    The function is `event_runs.start_runs_for_events`, passed as an argument to avoid an import cycle.
    """

    @property
    def link(self) -> RequestChannel:
        """Channel to the instance's broker; in a group, to the run's member, or to any member."""
        return link_to(self.instance.name, self.run.member)

    @property
    def once_key(self) -> str:
        """Idempotency key that stays equal when the step is repeated after the loss of a worker."""
        return f"{self.run.first_id}.{self.number}"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Planned effect of a step: a sentence, the values that count for the plan's hash, and details."""

    sentence: str
    counts: Any = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Outcome of a step: its result, and variables for later steps."""

    result: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepHandler:
    """Implementation of a kind of step.

    `plan(instance, options)` changes nothing; `perform` runs the step.
    """

    plan: Callable[[Instance, Options], StepPlan]
    perform: Callable[[StepContext, Options], StepResult]


def template_plan(template: str) -> Callable[[Instance, Options], StepPlan]:
    """Return a plan function whose sentence is the template filled with the options."""
    return lambda instance, options: StepPlan(
        template.format(**{name: text[:200] for name, text in options.items()})
    )
