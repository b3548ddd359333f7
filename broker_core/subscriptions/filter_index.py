"""Many filters on one topic: which of them a message may pass, by what stands at the paths they compare for equality.

Ten thousand subscribers that want `/account = 'A-…'` each are one dictionary, asked once a message, instead of ten thousand tests.
Filters without a guard are tested against every message. What the index finds may pass: it leaves the decision to the filter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

from broker_core.filters import Filter
from broker_core.filters.guards import Guard
from broker_core.filters.message_types import UNREADABLE
from broker_core.filters.paths import getter
from broker_core.filters.tokens import Step
from broker_core.filters.values import Number, leaves, number_of

_NOBODY: Final[dict[Filter, None]] = {}
Found = dict[Filter, list[int]]
"""The rows that may pass a filter, ascending."""


class FilterIndex:
    """Filters by their guards; each is in it once."""

    def __init__(self) -> None:
        self.unguarded: dict[Filter, None] = {}
        """Those that every message may pass."""
        self._fields: dict[tuple[Step, ...], _Field] = {}

    def add(self, chosen: Filter) -> None:
        """Put a filter in."""
        guard = chosen.guard
        if guard is None:
            self.unguarded[chosen] = None
        elif guard.keys:
            field = self._fields.get(guard.steps)
            if field is None:
                field = self._fields[guard.steps] = _Field(guard.steps)
            field.add(chosen, guard)

    def remove(self, chosen: Filter) -> None:
        """Take a filter out."""
        guard = chosen.guard
        if guard is None:
            del self.unguarded[chosen]
        elif guard.keys:
            field = self._fields[guard.steps]
            field.remove(chosen, guard)
            if not field.filters:
                del self._fields[guard.steps]

    def found(self, messages: Iterable[tuple[int, Any]]) -> Found:
        """Which guarded filters decoded messages may pass, each with the number of its row; rows ascend."""
        found: Found = defaultdict(list)
        fields = list(self._fields.values())
        for row, message in messages:
            if message is UNREADABLE:
                continue
            for field in fields:
                for chosen in field.of(message):
                    rows = found[chosen]
                    if not rows or rows[-1] != row:
                        rows.append(row)
        return found


class _Field:
    """The filters that one path guards."""

    __slots__ = ("_get", "_numbers", "_texts", "_texts_of_numbers", "filters")

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self._get = getter(steps)
        self.filters = 0
        self._texts: dict[str, dict[Filter, None]] = {}
        self._numbers: dict[Number, dict[Filter, None]] = {}
        self._texts_of_numbers: dict[Number, dict[Filter, None]] = {}
        """Those whose key is a text, by the number that the text stands for."""

    def add(self, chosen: Filter, guard: Guard) -> None:
        self.filters += 1
        for key in guard.keys:
            if isinstance(key, str):
                self._texts.setdefault(key, {})[chosen] = None
                if (number := number_of(key)) is not None:
                    self._texts_of_numbers.setdefault(number, {})[chosen] = None
            else:
                self._numbers.setdefault(key, {})[chosen] = None

    def remove(self, chosen: Filter, guard: Guard) -> None:
        self.filters -= 1
        for key in guard.keys:
            if isinstance(key, str):
                _take(self._texts, key, chosen)
                if (number := number_of(key)) is not None:
                    _take(self._texts_of_numbers, number, chosen)
            else:
                _take(self._numbers, key, chosen)

    def of(self, message: Any) -> Iterable[Filter]:
        """Those that a message may pass; one may come twice."""
        value = self._get(message)
        if type(value) is str and not self._numbers:
            return self._texts.get(value, _NOBODY)
        return self._of_values(leaves(value) if type(value) is list else (value,))

    def _of_values(self, values: Iterable[Any]) -> Iterator[Filter]:
        for value in values:
            if isinstance(value, str):
                yield from self._texts.get(value, _NOBODY)
                if self._numbers and (number := number_of(value)) is not None:
                    yield from self._numbers.get(number, _NOBODY)
            elif isinstance(value, int | float):
                yield from self._numbers.get(value, _NOBODY)
                yield from self._texts_of_numbers.get(value, _NOBODY)


def _take(by_key: dict[Any, dict[Filter, None]], key: str | Number, chosen: Filter) -> None:
    """Out of the filters of a key. Two texts may stand for one number: then one filter is there once for both."""
    members = by_key.get(key)
    if members is not None:
        members.pop(chosen, None)
        if not members:
            del by_key[key]
