"""An event loop on a thread of its own, for programs that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from broker_core.errors import OperatorError

T = TypeVar("T")


class LoopThread:
    """`name` is the client's whose loop it is. From any thread but its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def runs(self) -> bool:
        """Whether it is started, and not stopped."""
        return self._loop is not None

    def start(self) -> None:
        """Begin, and wait until the loop runs."""
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name=f"client {self._name}", daemon=True
        )
        self._thread.start()
        ready.wait()

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(ready.set)
            self._loop.run_forever()

    def stop(self) -> None:
        """End it, and wait until its thread has ended."""
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    def ask(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """What the work returns or raises; TimeoutError after so many seconds. OperatorError client_closed."""
        loop = self._loop
        if loop is None:
            work.close()
            raise self._closed()
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Have work done that says itself what becomes of it. OperatorError client_closed."""
        loop = self._loop
        if loop is None:
            work.close()
            raise self._closed()
        asyncio.run_coroutine_threadsafe(work, loop)

    def tell(self, what: Callable[[], object]) -> None:
        """Have it done on the loop, and don't wait. OperatorError client_closed."""
        if self._loop is None:
            raise self._closed()
        self._loop.call_soon_threadsafe(what)

    def _closed(self) -> OperatorError:
        return OperatorError(
            "client_closed", f"Client {self._name} isn't started or is closed.", "Start it first."
        )
