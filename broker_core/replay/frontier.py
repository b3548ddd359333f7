"""How far the log goes, for those who follow it."""

from __future__ import annotations

import asyncio


class Frontier:
    """One instance's. `durable` is the newest sequence that is on disk and was dispatched to the live subscriptions, the
    durable frontier up to which the log may be read; `stamped` the newest that was given out, which may be
    under way; `shown` the newest that subscriptions with durability `live` were given before it was on
    disk."""

    def __init__(self, durable: int) -> None:
        self.durable = self.stamped = self.shown = durable
        self._news = asyncio.Event()

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
