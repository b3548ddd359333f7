"""How settings are read from a document: every problem is gathered instead of stopping at the first."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from broker_core.names import is_name

_Word = TypeVar("_Word", bound=StrEnum)
MAX_TEXTS = 1_000
"""Texts of one list."""


class Reader:
    """Reads values out of JSON-able data; `problems` are sentences that name the setting."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def only(self, source: Mapping[str, Any], known: Collection[str], where: str) -> None:
        """Nothing but these settings may be there."""
        self.problems += [f"{where}: there is no setting {key!r}" for key in source if key not in known]

    def name(self, source: Mapping[str, Any], where: str) -> str:
        """A name, which must be there."""
        name = source.get("name", "")
        if not isinstance(name, str) or not is_name(name):
            self.problems.append(f"{where}: name must be 1 to 64 letters, digits, dots, dashes, underscores")
        return str(name)

    def mapping(self, source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        """An object; empty when there is none."""
        value = source.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.problems.append(f"{key} must be an object")
            return {}
        return value

    def number(self, source: Mapping[str, Any], key: str, where: str, low: int, high: int) -> int | None:
        """A whole number within these bounds; None when it isn't set."""
        value = source.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.problems.append(f"{where}: {key} must be a whole number from {low} to {high}")
            return None
        return value

    def decimal(
        self, source: Mapping[str, Any], key: str, where: str, low: float, high: float
    ) -> float | None:
        """A number within these bounds; None when it isn't set."""
        value = source.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            self.problems.append(f"{where}: {key} must be a number from {low:g} to {high:g}")
            return None
        return float(value)

    def flag(self, source: Mapping[str, Any], key: str, where: str) -> bool | None:
        """True or false; None when it isn't set."""
        value = source.get(key)
        if value is not None and not isinstance(value, bool):
            self.problems.append(f"{where}: {key} must be true or false")
            return None
        return value

    def choice(self, source: Mapping[str, Any], key: str, where: str, words: type[_Word]) -> _Word | None:
        """One of an enumeration's words; None when it isn't set."""
        value = source.get(key)
        if value is None:
            return None
        try:
            return words(value)
        except ValueError:
            self.problems.append(f"{where}: {key} must be one of {', '.join(words)}")
            return None

    def text(self, source: Mapping[str, Any], key: str, where: str) -> str | None:
        """A text that isn't empty; None when it isn't set."""
        value = source.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            self.problems.append(f"{where}: {key} must be a text")
            return None
        return value

    def path(self, source: Mapping[str, Any], key: str, where: str) -> str | None:
        """An absolute path; None when it isn't set."""
        value = source.get(key)
        if value is not None and (not isinstance(value, str) or not value.startswith("/")):
            self.problems.append(f"{where}: {key} must be an absolute path")
            return None
        return value

    def texts(
        self,
        source: Mapping[str, Any],
        key: str,
        where: str,
        default: tuple[str, ...],
        what: str = "topic patterns",
    ) -> tuple[str, ...]:
        """A list of at most 1,000 texts; `what` they are is for the problem's sentence."""
        value = source.get(key)
        if value is None:
            return default
        if (
            not isinstance(value, (list, tuple))
            or len(value) > MAX_TEXTS
            or not all(isinstance(v, str) for v in value)
        ):
            self.problems.append(f"{where}: {key} must be a list of {what}")
            return default
        return tuple(value)

    def unique(self, values: list[Any], what: str) -> None:
        """No value may stand there twice."""
        for value in {value for value in values if values.count(value) > 1}:
            self.problems.append(f"two transports have the {what} {value}")
