"""Who takes turns on the loop, so that what many want done at once delays nobody else by more than a budget."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from broker_core.clock import Clock

TURN_NS: Final = 2_000_000
"""How long one client's commands may keep the loop in a turn, and all that stand in the line together; what was begun last is
finished. Some 60 small publishes; a large batch is one, so that a turn more for each costs it nothing that could be measured."""


class Turns:
    """An instance's line of whoever has more to do than one turn of the loop should take: inboxes beyond their budget, shared
    subscriptions that deal, clients that leave together. They may keep the loop for one budget a turn, however many they are, and
    whoever has had some goes to the line's end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._line: deque[Callable[[], int]] = deque()
        self._scheduled = False
        self._spent_ns = 0
        """By those that left in this turn."""

    def join(self, go_on: Callable[[], int]) -> None:
        """Call this in a later turn; it says how long it took, in ns."""
        self._line.append(go_on)
        self._schedule()

    def soon(self, act: Callable[[], None]) -> None:
        """Call this in a later turn."""
        self.join(partial(self._timed, act))

    def leave(self, left: Callable[[], None]) -> None:
        """Call this now, or in a later turn: what ends with a client of a thousand subscriptions takes a turn's budget alone, and
        hundreds may be cut off at once."""

        if self._line or self._spent_ns >= TURN_NS:
            self.soon(left)
            return
        if not self._spent_ns:
            asyncio.get_running_loop().call_soon(self._begin_anew)
        self._spent_ns += self._timed(left)

    def _timed(self, act: Callable[[], None]) -> int:
        began = self._clock.monotonic_ns()
        act()
        return self._clock.monotonic_ns() - began

    def _begin_anew(self) -> None:
        self._spent_ns = 0

    def _schedule(self) -> None:
        if self._line and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        spent = 0
        try:
            for _ in range(len(self._line)):
                spent += self._line.popleft()()
                if spent >= TURN_NS:
                    break
        finally:
            self._schedule()
