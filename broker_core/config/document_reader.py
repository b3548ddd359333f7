"""Reader of settings in a policy document, which collects all problems instead of stopping at the first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from broker_core.errors import OperatorError
from broker_core.names import is_name

_Member = TypeVar("_Member", bound=StrEnum)
MAX_TEXTS = 1_000
"""Maximum number of strings in one list setting."""


def bad_policy_error(problems: list[str]) -> OperatorError:
    """Return the error for a policy document that has these problems."""
    return OperatorError(
        "bad_policy",
        f"The policy can't be used: {'; '.join(problems)}.",
        "Correct the settings named and save again.",
        problems=problems,
    )


def is_path(value: Any) -> bool:
    """Return whether a value is an absolute path."""
    return isinstance(value, str) and value.startswith("/")


def is_list_of(value: Any, item_type: type, max_items: int) -> bool:
    """Return whether a value is a list of at most `max_items` items, all of type `item_type`."""
    listed = isinstance(value, (list, tuple)) and len(value) <= max_items
    return listed and all(isinstance(one, item_type) for one in value)


class DocumentReader:
    """Reader that validates values of JSON-compatible data.

    `problems` collects one sentence for each invalid setting. In all methods `source` is the JSON object,
    `key` the name of the setting, and `where` the part of the document that a problem names.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def check_known_keys(self, source: Mapping[str, Any], known: Collection[str], where: str) -> None:
        """Report a problem for each key of `source` that is not in `known`."""
        self.problems += [f"{where}: there is no setting {key!r}" for key in source if key not in known]

    def read_name(self, source: Mapping[str, Any], where: str) -> str:
        """Return the required setting `name`. Reports a problem if it is missing or not a valid name."""
        name = source.get("name", "")
        if not isinstance(name, str) or not is_name(name):
            self.problems.append(f"{where}: name must be 1 to 64 letters, digits, dots, dashes, underscores")
        return str(name)

    def read_object(self, source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        """Return the object in `key`, or an empty one if it is not set."""
        value = source.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.problems.append(f"{key} must be an object")
            return {}
        return value

    def read_checked(
        self, source: Mapping[str, Any], key: str, where: str, is_valid: Callable[[Any], bool], expected: str
    ) -> Any:
        """Return the value of `key` if the predicate `is_valid` accepts it.

        Returns None if the value is not set. An invalid value is reported as "must be `expected`", and the
        result is None too.
        """
        value = source.get(key)
        if value is None or is_valid(value):
            return value
        self.problems.append(f"{where}: {key} must be {expected}")
        return None

    def read_int(self, source: Mapping[str, Any], key: str, where: str, low: int, high: int) -> int | None:
        """Return an integer from `low` to `high`, or None if it is not set."""

        def is_valid(value: Any) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

        found: int | None = self.read_checked(
            source, key, where, is_valid, f"a whole number from {low} to {high}"
        )
        return found

    def read_float(
        self, source: Mapping[str, Any], key: str, where: str, low: float, high: float
    ) -> float | None:
        """Return a number from `low` to `high` as a float, or None if it is not set."""

        def is_valid(value: Any) -> bool:
            return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high

        found = self.read_checked(source, key, where, is_valid, f"a number from {low:g} to {high:g}")
        return None if found is None else float(found)

    def read_bool(self, source: Mapping[str, Any], key: str, where: str) -> bool | None:
        """Return a boolean, or None if it is not set."""
        found: bool | None = self.read_checked(
            source, key, where, lambda value: isinstance(value, bool), "true or false"
        )
        return found

    def read_enum(
        self, source: Mapping[str, Any], key: str, where: str, members: type[_Member]
    ) -> _Member | None:
        """Return a member of the enumeration `members`, or None if it is not set."""
        found = self.read_checked(
            source, key, where, list(members).__contains__, f"one of {', '.join(members)}"
        )
        return None if found is None else members(found)

    def read_text(self, source: Mapping[str, Any], key: str, where: str) -> str | None:
        """Return a non-empty string, or None if it is not set."""
        found: str | None = self.read_checked(
            source, key, where, lambda value: isinstance(value, str) and value != "", "a text"
        )
        return found

    def read_path(self, source: Mapping[str, Any], key: str, where: str) -> str | None:
        """Return an absolute path, or None if it is not set."""
        found: str | None = self.read_checked(source, key, where, is_path, "an absolute path")
        return found

    def read_texts(
        self,
        source: Mapping[str, Any],
        key: str,
        where: str,
        default: tuple[str, ...],
        item_name: str = "topic patterns",
    ) -> tuple[str, ...]:
        """Return a list of at most 1,000 strings, or `default` if it is not set.

        `item_name` names the strings in a problem's sentence.
        """
        found = self.read_checked(
            source, key, where, lambda value: is_list_of(value, str, MAX_TEXTS), f"a list of {item_name}"
        )
        return default if found is None else tuple(found)

    def check_unique(self, values: list[Any], value_name: str) -> None:
        """Report a problem for each value that occurs more than once. `value_name` names the values."""
        for value in {value for value in values if values.count(value) > 1}:
            self.problems.append(f"two transports have the {value_name} {value}")
