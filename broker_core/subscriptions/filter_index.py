"""Index of many filters on one topic: finds those that a message may pass, by required literals.

A filter's *guard* is such a requirement: a field that must equal a literal, or lie on one side of it. Ten
thousand subscribers with filters like `/account = 'A-…'` become one dictionary, looked up once per message,
instead of ten thousand tests. As many filters like `/price > …` become one array, compared with a whole batch
at once. Filters without a guard are tested against every message.

The index returns candidates: the filter itself still decides.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from broker_core.batch import Rows
from broker_core.filters import Filter
from broker_core.filters.index_keys import Guard, RequiredBound, RequiredKeys
from broker_core.filters.message_types import UNREADABLE
from broker_core.filters.tokens import Step
from broker_core.filters.values import Number, compile_path, flatten_array, parse_decimal

_NOBODY: Final[dict[Filter, None]] = {}
_FAR: Final = float("inf")
Found = dict[Filter, Sequence[int] | Rows]
"""Rows that may pass each filter, ascending."""


class FilterIndex:
    """Filters of one topic pattern by their guards. Each filter is in it at most once."""

    def __init__(self) -> None:
        self.unguarded: dict[Filter, None] = {}
        """Filters without a guard, which every message may pass."""
        self._by_keys: dict[tuple[Step, ...], _KeyIndex] = {}
        self._by_limit: dict[tuple[tuple[Step, ...], bool], _BoundIndex] = {}

    def add(self, chosen: Filter) -> None:
        """Add a filter."""
        guard = chosen.guard
        if guard is None:
            self.unguarded[chosen] = None
        elif isinstance(guard, RequiredBound):
            limits = self._by_limit.get(guard[:2])
            if limits is None:
                limits = self._by_limit[guard[:2]] = _BoundIndex(guard)
            limits.add(chosen, guard)
        elif guard.keys:
            keys = self._by_keys.get(guard.steps)
            if keys is None:
                keys = self._by_keys[guard.steps] = _KeyIndex(guard)
            keys.add(chosen, guard)

    def remove(self, chosen: Filter) -> None:
        """Remove a filter."""
        guard = chosen.guard
        if guard is None:
            del self.unguarded[chosen]
        elif isinstance(guard, RequiredBound):
            limits = self._by_limit[guard[:2]]
            if not limits.remove(chosen):
                del self._by_limit[guard[:2]]
        elif guard.keys:
            keys = self._by_keys[guard.steps]
            if not keys.remove(chosen, guard):
                del self._by_keys[guard.steps]

    def candidates(self, messages: Iterable[tuple[int, Any]]) -> Found:
        """Return the guarded filters that decoded messages may pass, each with its candidate rows, ascending.

        `messages` has pairs (row, decoded message) in ascending order of rows.
        """
        readable = [(row, message) for row, message in messages if message is not UNREADABLE]
        found: Found = {}
        for keys in self._by_keys.values():
            found |= keys.candidates(readable)
        for limits in self._by_limit.values():
            found |= limits.candidates(readable)
        return found


class _KeyIndex:
    """Filters that require the field at one path to equal one of their keys."""

    __slots__ = ("_filters", "_get", "_numbers", "_texts", "_texts_of_numbers")

    def __init__(self, guard: Guard) -> None:
        self._get = compile_path(guard.steps)
        self._filters = 0
        self._texts: dict[str, dict[Filter, None]] = {}
        self._numbers: dict[Number, dict[Filter, None]] = {}
        self._texts_of_numbers: dict[Number, dict[Filter, None]] = {}
        """Filters with a text as key, by the number that the text represents."""

    def add(self, chosen: Filter, guard: RequiredKeys) -> None:
        self._filters += 1
        for key in guard.keys:
            if isinstance(key, str):
                self._texts.setdefault(key, {})[chosen] = None
                if (number := parse_decimal(key)) is not None:
                    self._texts_of_numbers.setdefault(number, {})[chosen] = None
            else:
                self._numbers.setdefault(key, {})[chosen] = None

    def remove(self, chosen: Filter, guard: RequiredKeys) -> int:
        """Remove a filter; return the number of remaining filters."""
        self._filters -= 1
        for key in guard.keys:
            if isinstance(key, str):
                _take(self._texts, key, chosen)
                if (number := parse_decimal(key)) is not None:
                    _take(self._texts_of_numbers, number, chosen)
            else:
                _take(self._numbers, key, chosen)
        return self._filters

    def candidates(self, messages: Iterable[tuple[int, Any]]) -> dict[Filter, list[int]]:
        """Return the filters that the messages may pass, each with its rows, ascending."""
        found: dict[Filter, list[int]] = {}
        for row, message in messages:
            for chosen in self._of(self._get(message)):
                rows = found.get(chosen)
                if rows is None:
                    found[chosen] = [row]
                elif rows[-1] != row:
                    rows.append(row)
        return found

    def _of(self, value: Any) -> Iterable[Filter]:
        """Return the filters that a message with this value may pass; a filter may appear twice."""
        if type(value) is str and not self._numbers:
            return self._texts.get(value, _NOBODY)
        return self._of_elements(flatten_array(value) if type(value) is list else (value,))

    def _of_elements(self, values: Iterable[Any]) -> Iterator[Filter]:
        """Yield the filters with a key that equals one of the values, as text or as number."""
        for value in values:
            if isinstance(value, str):
                yield from self._texts.get(value, _NOBODY)
                if self._numbers and (number := parse_decimal(value)) is not None:
                    yield from self._numbers.get(number, _NOBODY)
            elif isinstance(value, int | float):
                yield from self._numbers.get(value, _NOBODY)
                yield from self._texts_of_numbers.get(value, _NOBODY)


class _BoundIndex:
    """Filters that require the value at one path to reach a limit.

    For filters with an upper limit all signs are inverted.
    """

    __slots__ = ("_filters", "_get", "_indexes", "_limits", "_sign")

    def __init__(self, guard: RequiredBound) -> None:
        self._get = compile_path(guard.steps)
        self._sign = 1.0 if guard.above else -1.0
        self._limits = array("d")
        self._filters: list[Filter] = []
        self._indexes: dict[Filter, int] = {}
        """Index of each filter in `_filters` and `_limits`."""

    def add(self, chosen: Filter, guard: RequiredBound) -> None:
        self._indexes[chosen] = len(self._filters)
        self._filters.append(chosen)
        self._limits.append(self._sign * guard.limit)

    def remove(self, chosen: Filter) -> int:
        """Remove a filter; return the number of remaining filters."""
        index, last, limit = self._indexes.pop(chosen), self._filters.pop(), self._limits.pop()
        if last is not chosen:
            self._filters[index], self._limits[index], self._indexes[last] = last, limit, index
        return len(self._filters)

    def candidates(self, messages: Iterable[tuple[int, Any]]) -> dict[Filter, Rows]:
        """Return the filters that the messages may pass, each with its rows, ascending."""
        reaches = [
            (row, reach) for row, message in messages if (reach := self._reach(self._get(message))) == reach
        ]
        if not reaches:
            return {}
        reaching_rows, values = (
            np.array([row for row, _ in reaches]),
            np.array([reach for _, reach in reaches]),
        )
        order = np.argsort(values, kind="stable")
        reaching_rows, values = reaching_rows[order], values[order]
        limits = np.frombuffer(self._limits)
        # Conversion to floating point keeps the order but may make different values equal. So an equal value
        # is a candidate whatever the operator.
        indexes = np.flatnonzero(limits <= values[-1])
        starts = np.searchsorted(values, limits[indexes])
        return {
            self._filters[index]: np.sort(reaching_rows[start:])
            for index, start in zip(indexes.tolist(), starts.tolist(), strict=True)
        }

    def _reach(self, value: Any) -> float:
        """Return how far a value reaches in this direction; NaN when it passes no comparison."""
        if isinstance(value, int | float):
            try:
                return self._sign * value
            except OverflowError:
                return _FAR
        if type(value) is list:
            return _FAR if value else np.nan
        if isinstance(value, str) and value:
            number = parse_decimal(value)
            # A text that is not a number is greater than any number.
            return self._sign * number if number is not None else _FAR if self._sign > 0 else np.nan
        return np.nan


def _take(by_key: dict[Any, dict[Filter, None]], key: str | Number, chosen: Filter) -> None:
    """Remove a filter from the filters of a key, if it is there.

    It may be missing: two texts of a filter can represent one number, for which it was added once.
    """
    members = by_key.get(key)
    if members is not None:
        members.pop(chosen, None)
        if not members:
            del by_key[key]
