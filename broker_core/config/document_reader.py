"""How settings are read from a document: every problem is gathered instead of stopping at the first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from broker_core.errors import OperatorError
from broker_core.names import is_name

_Word = TypeVar("_Word", bound=StrEnum)
MAX_TEXTS = 1_000
"""Texts of one list."""


def bad_policy_error(problems: list[str]) -> OperatorError:
    """The error for a document with these problems."""
    return OperatorError(
        "bad_policy", f"The policy can't be used: {'; '.join(problems)}.", "Correct the settings named and save again.",
        problems=problems,
    )  # fmt: skip


def is_path(value: Any) -> bool:
    """Whether it is an absolute path."""
    return isinstance(value, str) and value.startswith("/")


def is_list_of(value: Any, kind: type, most: int) -> bool:
    """Whether it is a list of at most so many of a kind."""
    listed = isinstance(value, (list, tuple)) and len(value) <= most
    return listed and all(isinstance(one, kind) for one in value)


class DocumentReader:
    """Reads values out of JSON-able data; `problems` are sentences that name the setting."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def check_known_keys(self, source: Mapping[str, Any], known: Collection[str], where: str) -> None:
        """Nothing but these settings may be there."""
        self.problems += [f"{where}: there is no setting {key!r}" for key in source if key not in known]

    def read_name(self, source: Mapping[str, Any], where: str) -> str:
        """A name, which must be there."""
        name = source.get("name", "")
        if not isinstance(name, str) or not is_name(name):
            self.problems.append(f"{where}: name must be 1 to 64 letters, digits, dots, dashes, underscores")
        return str(name)

    def read_object(self, source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        """An object; empty when there is none."""
        value = source.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.problems.append(f"{key} must be an object")
            return {}
        return value

    def read_checked(
        self, source: Mapping[str, Any], key: str, where: str, fits: Callable[[Any], bool], wanted: str
    ) -> Any:
        """A value that fits; None when it isn't set, and when it doesn't, which is a problem."""
        value = source.get(key)
        if value is None or fits(value):
            return value
        self.problems.append(f"{where}: {key} must be {wanted}")
        return None

    def read_int(self, source: Mapping[str, Any], key: str, where: str, low: int, high: int) -> int | None:
        """A whole number within these bounds; None when it isn't set."""

        def fits(value: Any) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

        found: int | None = self.read_checked(
            source, key, where, fits, f"a whole number from {low} to {high}"
        )
        return found

    def read_float(
        self, source: Mapping[str, Any], key: str, where: str, low: float, high: float
    ) -> float | None:
        """A number within these bounds; None when it isn't set."""

        def fits(value: Any) -> bool:
            return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high

        found = self.read_checked(source, key, where, fits, f"a number from {low:g} to {high:g}")
        return None if found is None else float(found)

    def read_bool(self, source: Mapping[str, Any], key: str, where: str) -> bool | None:
        """True or false; None when it isn't set."""
        found: bool | None = self.read_checked(
            source, key, where, lambda value: isinstance(value, bool), "true or false"
        )
        return found

    def read_enum(self, source: Mapping[str, Any], key: str, where: str, words: type[_Word]) -> _Word | None:
        """One of an enumeration's words; None when it isn't set."""
        found = self.read_checked(source, key, where, list(words).__contains__, f"one of {', '.join(words)}")
        return None if found is None else words(found)

    def read_text(self, source: Mapping[str, Any], key: str, where: str) -> str | None:
        """A text that isn't empty; None when it isn't set."""
        found: str | None = self.read_checked(
            source, key, where, lambda value: isinstance(value, str) and value != "", "a text"
        )
        return found

    def read_path(self, source: Mapping[str, Any], key: str, where: str) -> str | None:
        """An absolute path; None when it isn't set."""
        found: str | None = self.read_checked(source, key, where, is_path, "an absolute path")
        return found

    def read_texts(
        self, source: Mapping[str, Any], key: str, where: str, default: tuple[str, ...], what: str = "topic patterns"
    ) -> tuple[str, ...]:  # fmt: skip
        """A list of at most 1,000 texts; `what` they are is for the problem's sentence."""
        found = self.read_checked(
            source, key, where, lambda value: is_list_of(value, str, MAX_TEXTS), f"a list of {what}"
        )
        return default if found is None else tuple(found)

    def check_unique(self, values: list[Any], what: str) -> None:
        """No value may stand there twice."""
        for value in {value for value in values if values.count(value) > 1}:
            self.problems.append(f"two transports have the {what} {value}")
