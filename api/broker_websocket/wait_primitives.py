"""What a WebSocket's task waits for. asyncio's events and queues let any number wait, in deques of 760 bytes each; a thousand
connections that nobody knows yet had eight of them, and here one task waits for each."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class SingleWaiterEvent:
    """Open or not; one task at a time may wait for it to be open."""

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
        """Until it is opened; whether it was closed again since doesn't matter."""
        if self._open:
            return
        assert self._waiter is None, "one waits"
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class SingleReaderQueue:
    """A client's messages that wait for the application, which is one task, and how large they are."""

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
