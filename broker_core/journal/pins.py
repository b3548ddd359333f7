"""First pinned sequence of each user, over the pins of all its client names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Protocol

SLACK = 64
"""Stale heap entries that are tolerated in addition to the number of pins, before a heap is rebuilt."""


class NamePin(Protocol):
    """Pin as this module sees it: a client name and a sequence; `open_segments.Pin` is one."""

    holder: str
    sequence: int


@dataclass(slots=True)
class _PinnedName:
    """Client name with pins, and the user it belongs to."""

    user: str
    pins: set[NamePin] = field(default_factory=set)


class PinsByUser:
    """Pins of client names, and the first sequence that each user needs.

    Each user has a heap of pins, ordered by the sequence that a pin had when it was pushed. Pins only move
    forward, so the top is either correct or can be corrected on demand: O(log n) for each top pin that was
    moved, removed, or given to another user since.
    """

    def __init__(self) -> None:
        self._user_of: Callable[[str], str] = lambda name: name
        self._names: dict[str, _PinnedName] = {}
        self._heaps: dict[str, list[tuple[int, int, NamePin]]] = {}
        self._pins_of_user: Counter[str] = Counter()
        """Number of pins of each user."""
        self._tie_breaker = count()
        """Counter that makes heap entries of equal sequence comparable."""

    def set_user_lookup(self, user_of: Callable[[str], str]) -> None:
        """Set the function that returns the user of a name; it is called at a name's first pin.

        Later changes are reported through `set_user`.
        """
        self._user_of = user_of
        for name in self._names:
            self.set_user(name, user_of(name))

    def add(self, pin: NamePin) -> None:
        """Add a pin."""
        named = self._names.get(pin.holder)
        if named is None:
            named = self._names[pin.holder] = _PinnedName(self._user_of(pin.holder))
        named.pins.add(pin)
        self._pins_of_user[named.user] += 1
        self._push(named.user, pin)

    def remove(self, pin: NamePin) -> None:
        """Remove a pin. An unknown pin was removed already, and is ignored."""
        named = self._names.get(pin.holder)
        if named is None or pin not in named.pins:
            return
        named.pins.discard(pin)
        if not named.pins:
            del self._names[pin.holder]
        self._let_go(named.user, 1)

    def set_user(self, name: str, user: str) -> None:
        """Record that a name and its pins belong to `user` now."""
        named = self._names.get(name)
        if named is None or named.user == user:
            return
        before, named.user = named.user, user
        self._pins_of_user[user] += len(named.pins)
        for pin in named.pins:
            self._push(user, pin)
        self._let_go(before, len(named.pins))

    def first_pinned_by(self, user: str) -> int | None:
        """Return the first sequence that the user's pins need; None if it has no pin."""
        heap = self._heaps.get(user)
        if heap is None:
            return None
        while True:
            # the heap has at least one valid pin, because users without pins have no heap
            at, _, pin = heap[0]
            if not self._is_of(user, pin):
                heappop(heap)
            elif pin.sequence != at:
                heapreplace(heap, (pin.sequence, next(self._tie_breaker), pin))
            else:
                return at

    def _is_of(self, user: str, pin: NamePin) -> bool:
        """Return whether a heap entry is valid: its pin exists and belongs to the user."""
        named = self._names.get(pin.holder)
        return named is not None and named.user == user and pin in named.pins

    def _push(self, user: str, pin: NamePin) -> None:
        """Add a pin to a user's heap, and rebuild the heap if it has too many stale entries."""
        heap = self._heaps.setdefault(user, [])
        heappush(heap, (pin.sequence, next(self._tie_breaker), pin))
        if len(heap) > 2 * self._pins_of_user[user] + SLACK:
            live = {entry[2]: None for entry in heap if self._is_of(user, entry[2])}
            heap[:] = [(one.sequence, next(self._tie_breaker), one) for one in live]
            heapify(heap)

    def _let_go(self, user: str, number: int) -> None:
        """Subtract `number` pins of a user, and delete its heap when none is left."""
        self._pins_of_user[user] -= number
        if not self._pins_of_user[user]:
            del self._pins_of_user[user], self._heaps[user]
