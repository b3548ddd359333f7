"""Many filters on one topic: which of them a message may pass, by what stands at the paths that they compare with a literal.

Ten thousand subscribers that want `/account = 'A-…'` each are one dictionary, asked once a message, instead of ten thousand tests; as many that
want `/price > …` are one array, compared with a whole batch at once. Filters without a guard are tested against every message. What the index
finds may pass: it leaves the decision to the filter.
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
"""The rows that may pass a filter, ascending."""


class FilterIndex:
    """Filters by their guards; each is in it once."""

    def __init__(self) -> None:
        self.unguarded: dict[Filter, None] = {}
        """Those that every message may pass."""
        self._by_keys: dict[tuple[Step, ...], _KeyIndex] = {}
        self._by_limit: dict[tuple[tuple[Step, ...], bool], _BoundIndex] = {}

    def add(self, chosen: Filter) -> None:
        """Put a filter in."""
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
        """Take a filter out."""
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
        """Which guarded filters decoded messages may pass, each with the numbers of its rows; rows ascend."""
        readable = [(row, message) for row, message in messages if message is not UNREADABLE]
        found: Found = {}
        for keys in self._by_keys.values():
            found |= keys.candidates(readable)
        for limits in self._by_limit.values():
            found |= limits.candidates(readable)
        return found


class _KeyIndex:
    """The filters for which something at one path has to equal one of their keys."""

    __slots__ = ("_filters", "_get", "_numbers", "_texts", "_texts_of_numbers")

    def __init__(self, guard: Guard) -> None:
        self._get = compile_path(guard.steps)
        self._filters = 0
        self._texts: dict[str, dict[Filter, None]] = {}
        self._numbers: dict[Number, dict[Filter, None]] = {}
        self._texts_of_numbers: dict[Number, dict[Filter, None]] = {}
        """Those whose key is a text, by the number that the text stands for."""

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
        """How many are left."""
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
        """Those that a message with this value may pass; one may come twice."""
        if type(value) is str and not self._numbers:
            return self._texts.get(value, _NOBODY)
        return self._of_elements(flatten_array(value) if type(value) is list else (value,))

    def _of_elements(self, values: Iterable[Any]) -> Iterator[Filter]:
        for value in values:
            if isinstance(value, str):
                yield from self._texts.get(value, _NOBODY)
                if self._numbers and (number := parse_decimal(value)) is not None:
                    yield from self._numbers.get(number, _NOBODY)
            elif isinstance(value, int | float):
                yield from self._numbers.get(value, _NOBODY)
                yield from self._texts_of_numbers.get(value, _NOBODY)


class _BoundIndex:
    """The filters for which what is at one path has to reach their limit. Those that want less are kept with all signs turned."""

    __slots__ = ("_filters", "_get", "_limits", "_places", "_sign")

    def __init__(self, guard: RequiredBound) -> None:
        self._get = compile_path(guard.steps)
        self._sign = 1.0 if guard.above else -1.0
        self._limits = array("d")
        self._filters: list[Filter] = []
        self._places: dict[Filter, int] = {}

    def add(self, chosen: Filter, guard: RequiredBound) -> None:
        self._places[chosen] = len(self._filters)
        self._filters.append(chosen)
        self._limits.append(self._sign * guard.limit)

    def remove(self, chosen: Filter) -> int:
        """How many are left."""
        place, last, limit = self._places.pop(chosen), self._filters.pop(), self._limits.pop()
        if last is not chosen:
            self._filters[place], self._limits[place], self._places[last] = last, limit, place
        return len(self._filters)

    def candidates(self, messages: Iterable[tuple[int, Any]]) -> dict[Filter, Rows]:
        reaches = [
            (row, reach) for row, message in messages if (reach := self._reach(self._get(message))) == reach
        ]
        if not reaches:
            return {}
        there, values = np.array([row for row, _ in reaches]), np.array([reach for _, reach in reaches])
        order = np.argsort(values, kind="stable")
        there, values = there[order], values[order]
        limits = np.frombuffer(self._limits)
        # Conversion to floating point keeps the order but may make two equal: so who is equal may pass, whatever the operator.
        places = np.flatnonzero(limits <= values[-1])
        starts = np.searchsorted(values, limits[places])
        return {
            self._filters[place]: np.sort(there[start:])
            for place, start in zip(places.tolist(), starts.tolist(), strict=True)
        }

    def _reach(self, value: Any) -> float:
        """How far a value goes in this direction; not a number when it passes no comparison."""
        if isinstance(value, int | float):
            try:
                return self._sign * value
            except OverflowError:
                return _FAR
        if type(value) is list:
            return _FAR if value else np.nan
        if isinstance(value, str) and value:
            number = parse_decimal(value)
            # A text that is no number is greater than any.
            return self._sign * number if number is not None else _FAR if self._sign > 0 else np.nan
        return np.nan


def _take(by_key: dict[Any, dict[Filter, None]], key: str | Number, chosen: Filter) -> None:
    """Out of the filters of a key. Two texts may stand for one number: then one filter is there once for both."""
    members = by_key.get(key)
    if members is not None:
        members.pop(chosen, None)
        if not members:
            del by_key[key]
