"""Options of triggers, conditions and steps: name, allowed values, and display in a form. Pure.

Each option is a text, so that it can contain `{{NAME}}`. An option with a variable is validated after its
expansion, any other option when the action is saved.
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
"""Function that raises OperatorError or ClientError for an invalid text."""


def check_text(text: str) -> None:
    """Accept any text. The limit of length applies to every option elsewhere."""


def number_check(minimum: float, maximum: float) -> Check:
    """Return a check that a text is a number from `minimum` to `maximum`."""

    def check(text: str) -> None:
        try:
            fits = minimum <= float(text) <= maximum
        except ValueError:
            fits = False
        if not fits:
            raise OperatorError(
                "bad_number", f"{text[:40]!r} isn't a number from {minimum:g} to {maximum:g}.", "Give one."
            )

    return check


def check_name(text: str) -> None:
    """Check a name: 1 to 64 letters, digits, dots, dashes or underscores. Raises OperatorError `bad_name`."""
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
    """Check names separated by commas. Raises OperatorError `bad_name`."""
    for part in text.split(","):
        check_name(part.strip())


@dataclass(frozen=True, slots=True)
class StepOption:
    """Option of a trigger, condition or step.

    `choices` (value, label) lists the only allowed values. `long` shows a field of several lines.
    """

    name: str
    label: str
    check: Check = check_text
    help: str = ""
    required: bool = True
    default: str = ""
    choices: Sequence[tuple[str, str]] = ()
    long: bool = False
    fixed: bool = False
    """Variables are forbidden, because the value must be known before the run."""
    raw: bool = False
    """The value is a body whose bytes matter: not stripped, and expanded by the step itself."""


@dataclass(frozen=True, slots=True)
class StepKind:
    """Kind of trigger, condition or step.

    gives        variables that it adds to the run
    destructive  removes something or disconnects clients
    exclusive    name of the lock: one run at a time per instance holds it; "" for none
    """

    name: str
    label: str
    options: tuple[StepOption, ...] = ()
    help: str = ""
    gives: tuple[str, ...] = ()
    destructive: bool = False
    exclusive: str = ""

    def option(self, name: str) -> StepOption:
        """Return the option of that name."""
        return next(option for option in self.options if option.name == name)


def check_options(
    kind: StepKind, options: Mapping[str, Any], where: str, *, expanded: bool = False
) -> dict[str, str]:
    """Return the options of a kind, with defaults filled in.

    Args:
        kind: The kind.
        options: Options by name.
        where: Beginning of each error's text.
        expanded: Whether variables are expanded, so that a remaining `{{` is plain text.

    Raises:
        OperatorError: `bad_action`, with the option's name in the details.
    """
    known = {option.name for option in kind.options}
    if unknown := [name for name in options if name not in known]:
        raise bad_action_error(
            f"{where}: {kind.label!r} has no option {str(unknown[0])[:40]!r}.", option=str(unknown[0])[:40]
        )
    return {
        option.name: _one(kind, option, options.get(option.name), where, expanded) for option in kind.options
    }


def _one(kind: StepKind, option: StepOption, value: Any, where: str, expanded: bool) -> str:
    """Return the text of one option, or its default. Raises OperatorError `bad_action`.

    An unexpanded text with variables is accepted unvalidated, unless the option forbids variables.
    """
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
            raise bad_action_error(f"{name} can't contain variables.", option=option.name)
        return text
    if text:
        _check(option, text, name)
    return text


def _check(option: StepOption, text: str, name: str) -> None:
    """Raise OperatorError `bad_action` if a text isn't one of the option's choices or fails its check."""
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
    """Return the error for an invalid definition."""
    refused = OperatorError("bad_action", sentence, "Correct it and save again.")
    refused.details = details
    return refused


# Options that several kinds share.
AGE = StepOption("age", "Older than", parse_age, "Such as 7d or 1h30m")
CLIENT = StepOption(
    "client",
    "Client names",
    compile_glob,
    "Pattern with * and ?, or ~ and a regular expression; empty matches all",
    required=False,
)
TOPIC = StepOption(
    "topic", "Topic pattern", TopicPattern.parse, "A topic, a.*.b, a.>, or ~ and a regular expression"
)
FILTER = StepOption(
    "filter", "Filter", compile_filter, "Filter over the message, such as /price > 100", required=False
)
DIRECTORY_NAMES = ("journal", "archive", "spool", "lake", "home")
FILE_SYSTEM = StepOption(
    "place",
    "File system of",
    choices=tuple((name, name) for name in DIRECTORY_NAMES),
    default="journal",
    fixed=True,
)
