"""Event and queue for a single waiting task.

asyncio's events and queues allow any number of waiters, in deques of 760 bytes each. A thousand connections
before their logon had eight of these each. Here one task waits for each object.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

INPUT_ENDED = "sluice.input_ended"
"""Type of the message that tells the application that the peer sends nothing more, and may still read."""


class SingleWaiterEvent:
    """Event that one task at a time may wait for."""

    __slots__ = ("_open", "_waiter")

    def __init__(self, *, is_open: bool = False) -> None:
        self._open = is_open
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        return self._open

    def set(self) -> None:
        self._open = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        self._open = False

    async def wait(self) -> None:
        """Wait until the event is set. Returns even if it was cleared again before the task ran."""
        if self._open:
            return
        assert self._waiter is None, "one waits"
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class SingleReaderQueue:
    """Queue of messages for an application with one reading task. `nbytes` is their total size."""

    __slots__ = ("_any", "_waiting", "nbytes")

    def __init__(self) -> None:
        self._waiting: deque[dict[str, Any]] = deque()
        self._any = SingleWaiterEvent()
        self.nbytes = 0

    def qsize(self) -> int:
        return len(self._waiting)

    def put_nowait(self, message: dict[str, Any]) -> None:
        self.nbytes += _size(message)
        self._waiting.append(message)
        self._any.set()

    async def get(self) -> dict[str, Any]:
        while not self._waiting:
            self._any.clear()
            await self._any.wait()
        message = self._waiting.popleft()
        self.nbytes -= _size(message)
        return message


def _size(message: dict[str, Any]) -> int:
    return len(message.get("bytes") or message.get("text") or "")
