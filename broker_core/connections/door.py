"""The door: whoever nobody knows yet is heard by turns, and those that are known go first.

A loop calls for everything that is ready in one turn, and a thousand strangers that speak at once would keep it for a second. So their
sockets are not the loop's. They stand in a line that the kernel keeps, an epoll of their own: of those that have sent something a few are heard in each
turn of the loop, for no longer than a client's own commands may take (`delivery.turns`), and the others a turn later. What they say
meanwhile waits in the kernel. Who is being closed and still sends stands there too.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable
from typing import Final

from broker_core.clock import Clock
from broker_core.delivery.scheduling import TURN_NS

HEARD_A_TURN: Final = 8
"""Sockets at most. asyncio's transports read one turn later, which no clock here measures: some 0.2 ms each."""
ACCEPTED_A_TURN: Final = 4
"""Connections that a listener takes from its kernel in a turn; the others wait there."""
GUEST_READ_BYTES: Final = 64 * 1024
"""What is read at once of somebody whom nobody knows."""
_ONCE: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT

Heard = Callable[[], None]


class Door:
    """One instance's. Belongs to the loop that runs when the first is watched."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._line = select.epoll()
        self._waiting: dict[int, Heard] = {}
        """By their descriptors."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, descriptor: int, heard: Heard) -> None:
        """Call this once, in a turn of its own, when the socket has something to be read, or an end."""
        self._waiting[descriptor] = heard
        try:
            self._line.modify(descriptor, _ONCE)
        except FileNotFoundError:
            self._line.register(descriptor, _ONCE)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._line.fileno(), self._turn)

    def forget(self, descriptor: int, heard: Heard) -> None:
        """Don't call it. Harmless when it was called, and when the descriptor is closed and another's."""
        if self._waiting.get(descriptor) == heard:
            del self._waiting[descriptor]
            with contextlib.suppress(OSError):  # it is closed
                self._line.unregister(descriptor)
            self._rest()

    def _turn(self) -> None:
        began = self._clock.monotonic_ns()
        for _ in range(HEARD_A_TURN):
            found = self._line.poll(0, 1)
            if not found:
                break
            heard = self._waiting.pop(found[0][0], None)
            if heard is not None:
                heard()
            if self._clock.monotonic_ns() - began >= TURN_NS:
                break
        self._rest()

    def _rest(self) -> None:
        """Nobody is there: the loop needn't look."""
        if not self._waiting and self._loop is not None:
            self._loop.remove_reader(self._line.fileno())
            self._loop = None
