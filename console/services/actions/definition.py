"""An action's definition: when (triggers) and do (conditions and steps, in order), checked whole. Pure.

As JSON: {"when": [{"on": "schedule", "every": "4h"}], "steps": [{"if": "client", "client": "risk-*"}, {"do": "archive",
"age": "7d"}]}. The one way into the database, for the editor, the API and the defaults alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker_core.errors import OperatorError
from console.services.actions import catalogue, conditions, triggers
from console.services.actions.options import Kind, bad, checked

MOST_TRIGGERS = 20
MOST_STEPS = 50

Part = dict[str, str]


def checked_triggers(given: Any) -> list[Part]:
    """The triggers with their defaults. Raises OperatorError bad_action, details["part"] like "when.0"."""
    return [
        _part(one, ("on",), "when", number) for number, one in enumerate(_list(given, "when", MOST_TRIGGERS))
    ]


def checked_steps(given: Any) -> list[Part]:
    """Conditions and steps with their defaults, at least one of the latter. Raises OperatorError bad_action."""
    made = [
        _part(one, ("do", "if"), "steps", number)
        for number, one in enumerate(_list(given, "steps", MOST_STEPS))
    ]
    if not any("do" in part for part in made):
        raise bad("The action does nothing: give it a step.", part="steps")
    return made


def table_of(word: str) -> dict[str, Kind]:
    """The kinds behind "on", "if" and "do"."""
    return {"on": triggers.KINDS, "if": conditions.KINDS, "do": catalogue.KINDS}[word]


def kind_of(part: Mapping[str, str]) -> tuple[str, Kind]:
    """What a checked part is: ("do", the kind)."""
    word = next(word for word in ("on", "if", "do") if word in part)
    return word, table_of(word)[part[word]]


def options_of(part: Mapping[str, str]) -> dict[str, str]:
    """A part's options, without the word that says what it is."""
    _, kind = kind_of(part)
    return {option.name: part[option.name] for option in kind.options if option.name in part}


def exclusives(steps: Iterable[Mapping[str, str]]) -> set[str]:
    """What a run of these steps must have for itself on its instance."""
    return {kind.exclusive for _, kind in map(kind_of, steps) if kind.exclusive}


def is_destructive(steps: Iterable[Mapping[str, str]]) -> bool:
    """Whether one of the steps takes something away, or cuts somebody off."""
    return any(kind.destructive for _, kind in map(kind_of, steps))


def _list(given: Any, name: str, most: int) -> list[Any]:
    if not isinstance(given, list) or len(given) > most:
        raise bad(f"{name} must be a list of at most {most}.", part=name)
    return given


def _part(given: Any, allowed: tuple[str, ...], name: str, number: int) -> Part:
    place = f"{name}.{number}"
    found = [word for word in allowed if isinstance(given, Mapping) and isinstance(given.get(word), str)]
    if not found:
        raise bad(f"{name} {number + 1} must say one of {', '.join(allowed)}.", part=place)
    word = found[0]
    kind = table_of(word).get(given[word])
    if kind is None:
        raise bad(f"{name} {number + 1}: there is no {given[word][:40]!r}.", part=place)
    try:
        options = checked(
            kind, {key: value for key, value in given.items() if key != word}, f"{name} {number + 1}"
        )
    except OperatorError as problem:
        problem.details = {**problem.details, "part": place}
        raise
    return {word: kind.name, **options}
