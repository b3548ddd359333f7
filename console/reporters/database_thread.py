"""Separate thread for calls into the database, so that an unresponsive server delays nothing else.

The event loop's default executor doesn't fit: its threads are joined when the process ends, and a thread
that waits for a dead server would keep the broker from stopping. This thread is a daemon, and runs one call
after the other.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from django.db import close_old_connections, connections

P = ParamSpec("P")
T = TypeVar("T")
_Call = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class DatabaseThread:
    """Thread that runs calls in order. All methods belong to the event loop's thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._started_at = 0.0

    @property
    def waited_s(self) -> float:
        """Seconds since the current call began; 0.0 while none runs."""
        started_at = self._started_at
        return time.monotonic() - started_at if started_at else 0.0

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call in the thread, and return its result.

        A call that is cancelled before it began is skipped.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        self._calls.put((loop, result, lambda: call(*args, **kwargs)))
        return await result

    def close(self) -> None:
        """End the thread after its queued calls, and close its connections. Returns without waiting."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread = None

    def _work(self) -> None:
        while (entry := self._calls.get()) is not None:
            loop, result, call = entry
            if result.cancelled():
                continue
            self._started_at = time.monotonic()
            try:
                close_old_connections()
                made, problem = call(), None
            except Exception as error:
                made, problem = None, error
            self._started_at = 0.0
            with suppress(RuntimeError):  # the event loop may be closed by now
                loop.call_soon_threadsafe(_finish, result, made, problem)
        connections.close_all()


def _finish(result: asyncio.Future[Any], made: Any, problem: Exception | None) -> None:
    if result.done():
        return
    if problem is not None:
        result.set_exception(problem)
    else:
        result.set_result(made)
