"""How far the log goes, for those who follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

RETRY_S: Final = 0.5
"""How long a confirmed read that failed waits before it is tried again."""


class LogEnd:
    """Confirmed reads of the end of a log that other brokers append to as well.

    `read` is one try; it returns the newest record, or None. `was_read_since` shares one read, repeated until
    it succeeds, among all who wait for the end. Moments are monotonic ns.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[int | None]],
        monotonic_ns: Callable[[], int],
        on_read: Callable[[], None],
    ) -> None:
        self.read = read
        self.sequence = 0
        """The newest record at the last shared read."""
        self._monotonic_ns, self._on_read = monotonic_ns, on_read
        self._read_at = 0
        """When the last shared read that succeeded was begun; 0 before the first."""
        self._reading: asyncio.Task[None] | None = None

    def was_read_since(self, moment: int) -> bool:
        """Return whether a shared read succeeded that was begun at that moment or later; begin one if not."""
        if self._read_at >= moment:
            return True
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_shared(), name="end of the log")
        return False

    async def _read_shared(self) -> None:
        try:
            while True:
                at = self._monotonic_ns()
                found = await self.read()
                if found is not None:
                    break
                await asyncio.sleep(RETRY_S)
            self._read_at, self.sequence = at, found
        finally:
            self._reading = None
        self._on_read()

    def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()


class Frontier:
    """One instance's. `durable` is the newest sequence that is on disk and was dispatched to the live subscriptions, the
    durable frontier up to which the log may be read; `stamped` the newest that was given out, which may be
    under way; `shown` the newest that subscriptions with durability `live` were given before it was on
    disk."""

    def __init__(self, durable: int) -> None:
        self.durable = self.stamped = self.shown = durable
        self.end: LogEnd | None = None
        """Where other brokers append to the log as well; without them it ends with `stamped`."""
        self._news = asyncio.Event()

    async def confirm(self) -> int | None:
        """Return the newest record of the log, None when that can't be told within a few seconds."""
        return self.durable if self.end is None else await self.end.read()

    def move(self, durable: int) -> None:
        """Everything up to there is on disk and dispatched."""
        self.durable = durable
        self.wake()

    def wake(self) -> None:
        """Those that wait for news should look again."""
        self._news.set()
        self._news.clear()

    async def news(self) -> None:
        """Wait until more of the log may be read."""
        await self._news.wait()
