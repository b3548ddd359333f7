"""Chains of actions: one action's step raises an event that starts another action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from console.models import Action, Instance
from console.services.actions import definition
from console.services.actions.triggers import Trigger, TriggerEvent, matches_event


def triggered_actions(instance: Instance, event: TriggerEvent) -> list[tuple[Action, Trigger]]:
    """Return the enabled actions that an event starts, each with its matching trigger."""
    rows = Action.objects.filter(instance=instance, enabled=True).select_related("instance").order_by("pk")
    found = (
        (action, next((one for one in action.when if matches_event(one, event)), None)) for action in rows
    )
    return [(action, trigger) for action, trigger in found if trigger is not None]


def started_actions(instance: Instance, steps: Sequence[Mapping[str, str]]) -> list[Action]:
    """Return all actions that the steps start through events, directly or through other actions."""
    found: dict[int, Action] = {}
    waiting = [steps]
    while waiting:
        for part in waiting.pop():
            if part.get("do") != "event":
                continue
            for action, _ in triggered_actions(
                instance, TriggerEvent("event", {"SLUICE_EVENT": part["name"]})
            ):
                if action.pk not in found:
                    found[action.pk] = action
                    waiting.append(action.steps)
    return list(found.values())


def is_destructive(instance: Instance, steps: Sequence[Mapping[str, str]]) -> bool:
    """Whether the steps, or actions that they start, remove something or disconnect clients."""
    started = started_actions(instance, steps)
    return any(definition.is_destructive(one) for one in (steps, *(action.steps for action in started)))
