"""The options of triggers, conditions and steps: what each is called, what it may hold, how a form shows it. Pure.

Every option is text, so that `{{NAME}}` can stand in it. An option with a reference is checked when it has been
expanded; any other when the action is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker_core.errors import ClientError, OperatorError
from broker_core.filters import compile_filter
from broker_core.subscriptions.topics import TopicPattern
from console.services.actions.patterns import compile_glob
from console.services.actions.variables import has_reference
from console.units.ages import parse_age

MAX_CHARACTERS = 10_000

Check = Callable[[str], object]
"""Raises OperatorError or ClientError when a text can't be used."""


def check_text(text: str) -> None:
    """No rule but the length, which holds for all."""


def number_check(least: float, most: float) -> Check:
    """A check for a number."""

    def check(text: str) -> None:
        try:
            fits = least <= float(text) <= most
        except ValueError:
            fits = False
        if not fits:
            raise OperatorError(
                "bad_number", f"{text[:40]!r} isn't a number from {least:g} to {most:g}.", "Give one."
            )

    return check


def check_name(text: str) -> None:
    """A name of ours: letters, digits, dots, dashes, underscores."""
    if (
        not text
        or len(text) > 64
        or not all((one.isalnum() and one.isascii()) or one in "_-." for one in text)
    ):
        raise OperatorError(
            "bad_name",
            f"{text[:80]!r} isn't a name.",
            "Use 1 to 64 letters, digits, dots, dashes or underscores.",
        )


def check_names(text: str) -> None:
    """Such names with commas between."""
    for part in text.split(","):
        check_name(part.strip())


@dataclass(frozen=True, slots=True)
class StepOption:
    """One option. `choices` (value, label) closes it; `long` asks for a text of several lines."""

    name: str
    label: str
    check: Check = check_text
    help: str = ""
    required: bool = True
    default: str = ""
    choices: Sequence[tuple[str, str]] = ()
    long: bool = False
    fixed: bool = False  # no {{NAME}}: it must be known before anything happens
    raw: bool = False  # a body, whose bytes count: expanded by the step itself


@dataclass(frozen=True, slots=True)
class StepKind:
    """One kind of trigger, condition or step. `gives`: variables it adds."""

    name: str
    label: str
    options: tuple[StepOption, ...] = ()
    help: str = ""
    gives: tuple[str, ...] = ()
    destructive: bool = False
    exclusive: str = ""  # of the runs and steps with the same word, one at a time per instance

    def option(self, name: str) -> StepOption:
        """One of its options."""
        return next(option for option in self.options if option.name == name)


def check_options(
    kind: StepKind, given: Mapping[str, Any], where: str, *, expanded: bool = False
) -> dict[str, str]:
    """The options of a kind, defaults filled in. Raises OperatorError bad_action that names the option."""
    known = {option.name for option in kind.options}
    if unknown := [name for name in given if name not in known]:
        raise bad_action_error(
            f"{where}: {kind.label!r} has no option {str(unknown[0])[:40]!r}.", option=str(unknown[0])[:40]
        )
    return {
        option.name: _one(kind, option, given.get(option.name), where, expanded) for option in kind.options
    }


def _one(kind: StepKind, option: StepOption, value: Any, where: str, expanded: bool) -> str:
    name = f"{where}: {option.label}"
    if value is None or value == "":
        value = option.default
        if not value and option.required:
            raise bad_action_error(f"{name} is missing.", option=option.name)
    if (
        isinstance(value, bool)
        or not isinstance(value, str | int | float)
        or len(str(value)) > MAX_CHARACTERS
    ):
        raise bad_action_error(
            f"{name} must be a text of up to {MAX_CHARACTERS:,} characters.", option=option.name
        )
    text = str(value).replace("\r\n", "\n")
    if not option.raw:
        text = text.strip()
    if has_reference(text) and not expanded:
        if option.fixed or option.choices:
            raise bad_action_error(f"{name} can't hold variables.", option=option.name)
        return text
    if text:
        _check(option, text, name)
    return text


def _check(option: StepOption, text: str, name: str) -> None:
    if option.choices and text not in [value for value, _ in option.choices]:
        raise bad_action_error(
            f"{name} must be one of {', '.join(value for value, _ in option.choices)}.", option=option.name
        )
    try:
        option.check(text)
    except (OperatorError, ClientError) as problem:
        raise bad_action_error(
            f"{name}: {problem.sentence} {problem.fix}".strip(), option=option.name
        ) from None


def bad_action_error(sentence: str, **details: Any) -> OperatorError:
    """What every refused definition raises."""
    refused = OperatorError("bad_action", sentence, "Correct it and save again.")
    refused.details = details
    return refused


# Options that several kinds have.
AGE = StepOption("age", "Older than", parse_age, "Like 7d or 1h30m")
CLIENT = StepOption(
    "client", "Client names", compile_glob, "* and ?, or ~ and an expression; empty means all", required=False
)
TOPIC = StepOption(
    "topic", "Topic pattern", TopicPattern.parse, "A topic, a.*.b, a.>, or ~ and an expression"
)
FILTER = StepOption("filter", "Filter", compile_filter, "Over the message, like /price > 100", required=False)
PLACES = ("journal", "archive", "spool", "lake", "home")
PLACE = StepOption(
    "place",
    "File system of",
    choices=tuple((place, place) for place in PLACES),
    default="journal",
    fixed=True,
)
