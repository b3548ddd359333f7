"""An event loop on a thread of its own, for programs that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from broker_core.errors import OperatorError

T = TypeVar("T")


class LoopThread:
    """`name` is the client's whose loop it is. From any thread but its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = 0
        """Calls of `stop` whose last work isn't done."""
        self._lock = threading.Lock()
        """Nothing is handed to a loop that was told to stop: nobody would answer it."""

    @property
    def runs(self) -> bool:
        """Whether it is started, and not stopped."""
        return self._loop is not None

    @property
    def is_current(self) -> bool:
        """Whether the caller is in a callback on this very thread."""
        return self._thread is threading.current_thread()

    def start(self, first: Coroutine[Any, Any, object]) -> None:
        """Begin, and wait until the first work is done. When that fails nothing runs, and why is raised. OperatorError client_started."""
        if self.runs:
            first.close()
            raise OperatorError(
                "client_started", f"Client {self._name} was started before.", "Make a new client."
            )
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name=f"client {self._name}", daemon=True
        )
        self._thread.start()
        ready.wait()
        try:
            self.ask(first)
        except BaseException:
            self._stop()
            raise

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(ready.set)
            self._loop.run_forever()

    def stop(self, last: Coroutine[Any, Any, object], timeout: float | None = None) -> None:
        """End it after this last work, and wait until its thread has ended. Nothing is done when it doesn't
        run. Of several calls at the same time the last one ends it.

        Raises what the work raises, or TimeoutError when a callback of the application holds the thread for
        longer than `timeout` seconds; the thread then ends when the callback returns.
        """
        with self._lock:
            if self._loop is None:
                last.close()
                return
            self._stopping += 1
        held = False
        try:
            self.ask(last, timeout)
        except TimeoutError:
            held = True
            raise TimeoutError(f"Client {self._name} didn't close within {timeout:g} s.") from None
        finally:
            with self._lock:
                self._stopping -= 1
                ends = self._stopping == 0
            if ends:
                self._stop(join=not held)

    def _stop(self, *, join: bool = True) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        thread, self._thread = self._thread, None
        if thread is not None and join:
            thread.join()

    def ask(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """What the work returns or raises; TimeoutError after so many seconds. OperatorError client_closed,
        callback_would_wait."""
        try:
            self.refuse_waiting()
        except OperatorError:
            work.close()
            raise
        future = self.begin(work)
        try:
            return future.result(timeout)
        except CancelledError:
            if self.runs:
                raise
            raise self.closed() from None
        except TimeoutError as error:
            future.cancel()
            if error.args or timeout is None:  # it is the work's own
                raise
            raise TimeoutError(f"Client {self._name} had no answer within {timeout:g} s.") from None
        except BaseException:
            future.cancel()
            raise

    def refuse_waiting(self) -> None:
        """Raise OperatorError callback_would_wait in a callback on this thread, where a wait never ends."""
        if self.is_current:
            raise OperatorError(
                "callback_would_wait",
                f"Client {self._name} was asked to wait in one of its own callbacks, which would never end.",
                "Do it in another thread.",
            )

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Have work done, and don't wait for it. OperatorError client_closed."""
        with self._lock:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise self.closed()

    def tell(self, what: Callable[[], object]) -> None:
        """Have it done on the loop, and don't wait. OperatorError client_closed."""
        with self._lock:
            if self._loop is None:
                raise self.closed()
            self._loop.call_soon_threadsafe(what)

    def closed(self) -> OperatorError:
        """What is raised where it doesn't run."""
        return OperatorError(
            "client_closed", f"Client {self._name} isn't started or is closed.", "Start it first."
        )
