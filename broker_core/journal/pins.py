"""From where on each user holds the log, by what is kept and read under the names of its clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Protocol

SLACK = 64
"""Entries of pins that are gone, besides as many as there are pins, before a heap is made anew."""


class NamePin(Protocol):
    """What holds the log from `sequence` on for a name: `open_segments.Pin`."""

    holder: str
    sequence: int


@dataclass(slots=True)
class _PinnedName:
    user: str
    pins: set[NamePin] = field(default_factory=set)


class PinsByUser:
    """Pins that are held for names, and the first record that each user needs.

    A user's pins are a heap by the places they had when they were put in. A pin only moves on, so what lies on top is right, or is
    put right when somebody asks: O(log n) for each pin there that has moved, gone, or become another user's since.
    """

    def __init__(self) -> None:
        self._user_of: Callable[[str], str] = lambda name: name
        self._names: dict[str, _PinnedName] = {}
        self._heaps: dict[str, list[tuple[int, int, NamePin]]] = {}
        self._held: Counter[str] = Counter()
        """How many pins each user has."""
        self._turn = count()

    def set_user_lookup(self, user_of: Callable[[str], str]) -> None:
        """Whose a name is; asked when it begins to hold something. Later changes come by `belongs`."""
        self._user_of = user_of
        for name in self._names:
            self.set_user(name, user_of(name))

    def add(self, pin: NamePin) -> None:
        """It holds the log from now on."""
        named = self._names.get(pin.holder)
        if named is None:
            named = self._names[pin.holder] = _PinnedName(self._user_of(pin.holder))
        named.pins.add(pin)
        self._held[named.user] += 1
        self._push(named.user, pin)

    def remove(self, pin: NamePin) -> None:
        """It does no more. One that isn't there was removed already."""
        named = self._names.get(pin.holder)
        if named is None or pin not in named.pins:
            return
        named.pins.discard(pin)
        if not named.pins:
            del self._names[pin.holder]
        self._let_go(named.user, 1)

    def set_user(self, name: str, user: str) -> None:
        """The name is that user's from now on, with what is held for it."""
        named = self._names.get(name)
        if named is None or named.user == user:
            return
        before, named.user = named.user, user
        self._held[user] += len(named.pins)
        for pin in named.pins:
            self._push(user, pin)
        self._let_go(before, len(named.pins))

    def first_pinned_by(self, user: str) -> int | None:
        """The first record that the user's pins hold; None without any."""
        heap = self._heaps.get(user)
        if heap is None:
            return None
        while True:
            # A user with a heap has a pin in it.
            at, _, pin = heap[0]
            if not self._is_of(user, pin):
                heappop(heap)
            elif pin.sequence != at:
                heapreplace(heap, (pin.sequence, next(self._turn), pin))
            else:
                return at

    def _is_of(self, user: str, pin: NamePin) -> bool:
        named = self._names.get(pin.holder)
        return named is not None and named.user == user and pin in named.pins

    def _push(self, user: str, pin: NamePin) -> None:
        heap = self._heaps.setdefault(user, [])
        heappush(heap, (pin.sequence, next(self._turn), pin))
        if len(heap) > 2 * self._held[user] + SLACK:
            live = {entry[2]: None for entry in heap if self._is_of(user, entry[2])}
            heap[:] = [(one.sequence, next(self._turn), one) for one in live]
            heapify(heap)

    def _let_go(self, user: str, number: int) -> None:
        self._held[user] -= number
        if not self._held[user]:
            del self._held[user], self._heaps[user]
