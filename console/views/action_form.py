"""An action as a form: parts (triggers, conditions, steps) with the options of their kinds, and back. Pure.

Fields are named `when-0-every`, `steps-2-age`, with the word and kind of a part in `steps-2-part` ("do.archive"). A draft
is edited by buttons named `edit`: add.when, add.steps, remove.steps.2, up.steps.2, down.steps.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console.services.actions import catalogue, conditions, triggers
from console.services.actions.definition import MAX_STEPS, kinds_for
from console.services.actions.options import StepKind, StepOption

GROUPS = ("when", "steps")
MAX_PARTS = MAX_STEPS + 1


@dataclass(frozen=True, slots=True)
class OptionField:
    """One option of a part, with the value it has in the form."""

    name: str
    option: StepOption
    value: str


@dataclass(frozen=True, slots=True)
class ActionPart:
    """A trigger, condition or step in the form. `problem` is why it can't be saved."""

    group: str
    number: int
    word: str
    kind: StepKind
    fields: tuple[OptionField, ...]
    problem: str = ""

    @property
    def name(self) -> str:
        """What its fields' names begin with."""
        return f"{self.group}-{self.number}"

    @property
    def code(self) -> str:
        """What `…-part` holds."""
        return f"{self.word}.{self.kind.name}"


def part_choices(group: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """What can be added to a group: (heading, [(code, label)])."""
    if group == "when":
        return [("When", [(f"on.{kind.name}", kind.label) for kind in triggers.KINDS.values()])]
    steps = [(f"do.{kind.name}", kind.label) for kind in catalogue.KINDS.values()]
    return [
        ("Do", steps),
        ("Only if", [(f"if.{kind.name}", kind.label) for kind in conditions.KINDS.values()]),
    ]


def read_parts(post: Mapping[str, str]) -> dict[str, list[dict[str, str]]]:
    """The parts that a form holds, in order; unknown kinds are left out."""
    made: dict[str, list[dict[str, str]]] = {group: [] for group in GROUPS}
    for group in GROUPS:
        for number in range(MAX_PARTS):
            code = post.get(f"{group}-{number}-part", "")
            if (part := _blank(group, code)) is not None:
                word = code.partition(".")[0]
                made[group].append(
                    {
                        key: text if key == word else post.get(f"{group}-{number}-{key}", text)
                        for key, text in part.items()
                    }
                )
    return made


def edit_parts(parts: dict[str, list[dict[str, str]]], what: str, post: Mapping[str, str]) -> str:
    """Carry out a button on the parts; says what was done, for those who don't see it."""
    do, _, rest = what.partition(".")
    group, _, place = rest.partition(".")
    if group not in GROUPS:
        return ""
    rows = parts[group]
    if do == "add":
        part = _blank(group, post.get(f"add-{group}", ""))
        if part is None or len(rows) >= MAX_STEPS:
            return "Choose what to add."
        rows.append(part)
        return f"Added as number {len(rows)}."
    number = int(place) if place.isascii() and place.isdigit() and len(place) < 4 else -1
    if not 0 <= number < len(rows):
        return ""
    if do == "remove":
        rows.pop(number)
        return "Removed."
    other = number + (1 if do == "down" else -1)
    if do in ("up", "down") and 0 <= other < len(rows):
        rows[number], rows[other] = rows[other], rows[number]
        return f"Moved to place {other + 1}."
    return ""


def parts_for_page(
    group: str, rows: Sequence[Mapping[str, str]], problem: Mapping[str, Any] | None = None
) -> list[ActionPart]:
    """The parts as a page shows them."""
    made = []
    for number, row in enumerate(rows):
        word = next(word for word in ("on", "if", "do") if word in row)
        kind = kinds_for(word)[row[word]]
        fields = tuple(
            OptionField(f"{group}-{number}-{one.name}", one, str(row.get(one.name, one.default)))
            for one in kind.options
        )
        why = str(problem["message"]) if problem and problem.get("part") == f"{group}.{number}" else ""
        made.append(ActionPart(group, number, word, kind, fields, why))
    return made


def _blank(group: str, code: str) -> dict[str, str] | None:
    """A part of a kind with its defaults; None for what can't stand in this group."""
    word, _, name = code.partition(".")
    if word not in (("on",) if group == "when" else ("do", "if")) or name not in kinds_for(word):
        return None
    return {word: name, **{option.name: option.default for option in kinds_for(word)[name].options}}
