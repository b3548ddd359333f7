"""Form of an action: its parts (triggers, conditions, steps) with the options of their kinds. Pure
functions.

Fields are named `when-0-every`, `steps-2-age`. `steps-2-part` has the word and kind of a part
("do.archive"). Buttons named `edit` change the form: add.when, add.steps, remove.steps.2, up.steps.2,
down.steps.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console.services.actions import catalogue, conditions, triggers
from console.services.actions.definition import MAX_STEPS, kinds_for
from console.services.actions.options import StepKind, StepOption

GROUPS = ("when", "steps")
"""Groups of parts: triggers, and steps with conditions."""
MAX_PARTS = MAX_STEPS + 1
"""Maximum parts read from a group."""


@dataclass(frozen=True, slots=True)
class OptionField:
    """Option of a part, with its field name and value in the form."""

    name: str
    option: StepOption
    value: str


@dataclass(frozen=True, slots=True)
class ActionPart:
    """Trigger, condition or step in the form. `problem`: reason why it can't be saved, or ""."""

    group: str
    number: int
    word: str
    kind: StepKind
    fields: tuple[OptionField, ...]
    problem: str = ""

    @property
    def name(self) -> str:
        """Prefix of the part's field names."""
        return f"{self.group}-{self.number}"

    @property
    def code(self) -> str:
        """Value of the part's `…-part` field."""
        return f"{self.word}.{self.kind.name}"


def part_choices(group: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the parts that can be added to a group: (heading, [(code, label)])."""
    if group == "when":
        return [("When", [(f"on.{kind.name}", kind.label) for kind in triggers.KINDS.values()])]
    steps = [(f"do.{kind.name}", kind.label) for kind in catalogue.KINDS.values()]
    return [
        ("Do", steps),
        ("Only if", [(f"if.{kind.name}", kind.label) for kind in conditions.KINDS.values()]),
    ]


def read_parts(post: Mapping[str, str]) -> dict[str, list[dict[str, str]]]:
    """Return the parts in a submitted form, in order, without those of unknown kinds."""
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


def edit_parts(parts: dict[str, list[dict[str, str]]], button: str, post: Mapping[str, str]) -> str:
    """Apply a button to the parts, in place. Returns a sentence about the change for screen readers, or "".

    `button` is the button's value, such as "remove.steps.2".
    """
    do, _, target = button.partition(".")
    group, _, position = target.partition(".")
    if group not in GROUPS:
        return ""
    rows = parts[group]
    if do == "add":
        part = _blank(group, post.get(f"add-{group}", ""))
        if part is None or len(rows) >= MAX_STEPS:
            return "Choose an item to add."
        rows.append(part)
        return f"Added as number {len(rows)}."
    number = int(position) if position.isascii() and position.isdigit() and len(position) < 4 else -1
    if not 0 <= number < len(rows):
        return ""
    if do == "remove":
        rows.pop(number)
        return "Removed."
    neighbour = number + (1 if do == "down" else -1)
    if do in ("up", "down") and 0 <= neighbour < len(rows):
        rows[number], rows[neighbour] = rows[neighbour], rows[number]
        return f"Moved to place {neighbour + 1}."
    return ""


def parts_for_page(
    group: str, rows: Sequence[Mapping[str, str]], problem: Mapping[str, Any] | None = None
) -> list[ActionPart]:
    """Return the parts of a group for display. `problem` describes the part that could not be saved."""
    made = []
    for number, row in enumerate(rows):
        word = next(word for word in ("on", "if", "do") if word in row)
        kind = kinds_for(word)[row[word]]
        fields = tuple(
            OptionField(f"{group}-{number}-{one.name}", one, str(row.get(one.name, one.default)))
            for one in kind.options
        )
        message = str(problem["message"]) if problem and problem.get("part") == f"{group}.{number}" else ""
        made.append(ActionPart(group, number, word, kind, fields, message))
    return made


def _blank(group: str, code: str) -> dict[str, str] | None:
    """Return a part with default options, or None if the kind can't be in this group."""
    word, _, name = code.partition(".")
    if word not in (("on",) if group == "when" else ("do", "if")) or name not in kinds_for(word):
        return None
    return {word: name, **{option.name: option.default for option in kinds_for(word)[name].options}}
