"""Validation of an action's definition: "when" (triggers) and "steps" (conditions and steps, in order). Pure.

As JSON: {"when": [{"on": "schedule", "every": "4h"}], "steps": [{"if": "client", "client": "risk-*"},
{"do": "archive", "age": "7d"}]}. Editor, API and defaults all validate here before they store an action.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker_core.errors import OperatorError
from console.services.actions import catalogue, conditions, triggers
from console.services.actions.options import StepKind, bad_action_error, check_options

MAX_TRIGGERS = 20
MAX_STEPS = 50

Part = dict[str, str]
"""A trigger, condition or step: its kind under "on", "if" or "do", and its options."""


def check_triggers(triggers: Any) -> list[Part]:
    """Return the triggers with their defaults.

    Raises:
        OperatorError: `bad_action`, with `details["part"]` such as "when.0".
    """
    return [
        _part(one, ("on",), "when", number)
        for number, one in enumerate(_list(triggers, "when", MAX_TRIGGERS))
    ]


def check_steps(steps: Any) -> list[Part]:
    """Return conditions and steps with their defaults; at least one step is needed.

    Raises:
        OperatorError: `bad_action`, with `details["part"]` such as "steps.1".
    """
    made = [
        _part(one, ("do", "if"), "steps", number)
        for number, one in enumerate(_list(steps, "steps", MAX_STEPS))
    ]
    if not any("do" in part for part in made):
        raise bad_action_error("The action has no step: add one.", part="steps")
    return made


def kinds_for(word: str) -> dict[str, StepKind]:
    """Return the kinds of parts with the keyword "on", "if" or "do", by name."""
    return {"on": triggers.KINDS, "if": conditions.KINDS, "do": catalogue.KINDS}[word]


def part_kind(part: Mapping[str, str]) -> tuple[str, StepKind]:
    """Return the keyword of a validated part ("on", "if" or "do") and its kind."""
    word = next(word for word in ("on", "if", "do") if word in part)
    return word, kinds_for(word)[part[word]]


def part_options(part: Mapping[str, str]) -> dict[str, str]:
    """Return a part's options, without its keyword."""
    _, kind = part_kind(part)
    return {option.name: part[option.name] for option in kind.options if option.name in part}


def locks_needed(steps: Iterable[Mapping[str, str]]) -> set[str]:
    """Return the names of the locks that a run needs for these steps."""
    return {kind.exclusive for _, kind in map(part_kind, steps) if kind.exclusive}


def is_destructive(steps: Iterable[Mapping[str, str]]) -> bool:
    """Whether a step removes something or disconnects clients."""
    return any(kind.destructive for _, kind in map(part_kind, steps))


def _list(value: Any, name: str, max_length: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > max_length:
        raise bad_action_error(f"{name} must be a list of at most {max_length}.", part=name)
    return value


def _part(entry: Any, allowed: tuple[str, ...], name: str, number: int) -> Part:
    """Return one validated trigger, condition or step, with its kind under one of the `allowed` keywords.

    Raises:
        OperatorError: `bad_action`, with the part's position in the details.
    """
    position = f"{name}.{number}"
    found = [word for word in allowed if isinstance(entry, Mapping) and isinstance(entry.get(word), str)]
    if not found:
        raise bad_action_error(f"{name} {number + 1} must be one of {', '.join(allowed)}.", part=position)
    word = found[0]
    kind = kinds_for(word).get(entry[word])
    if kind is None:
        raise bad_action_error(f"{name} {number + 1}: {entry[word][:40]!r} is unknown.", part=position)
    try:
        options = check_options(
            kind, {key: value for key, value in entry.items() if key != word}, f"{name} {number + 1}"
        )
    except OperatorError as problem:
        problem.details = {**problem.details, "part": position}
        raise
    return {word: kind.name, **options}
