"""What a step works with, and what a step is: a plan that changes nothing, and the act."""

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
    """Where and for whom a step is carried out. `number`: which step of the run it is, from 0."""

    instance: Instance
    actor: Actor
    run: ActionRun
    progress: RunProgress
    variables: dict[str, str] = field(default_factory=dict)
    number: int = 0
    happened: Callable[..., list[ActionRun]] = lambda *args, **more: []
    """Starts the runs of events that a step raises: `event_runs.start_runs_for_events`, which itself plans with all steps."""

    @property
    def link(self) -> RequestChannel:
        """The instance's broker; of a group the one that the run is about, or any."""
        return link_to(self.instance.name, self.run.member)

    @property
    def once_key(self) -> str:
        """The same for a step and its repetition after a worker was lost: whoever is called can tell repeats by it."""
        return f"{self.run.first_id}.{self.number}"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a step would do: a sentence, what counts for the plan's hash, and details to show."""

    sentence: str
    counts: Any = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did: its result, and variables for the steps after it."""

    result: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepHandler:
    """One kind of step. `plan(instance, options)` changes nothing."""

    plan: Callable[[Instance, Options], StepPlan]
    perform: Callable[[StepContext, Options], StepResult]


def template_plan(template: str) -> Callable[[Instance, Options], StepPlan]:
    """A plan that is a sentence made from the options."""
    return lambda instance, options: StepPlan(
        template.format(**{name: text[:200] for name, text in options.items()})
    )
