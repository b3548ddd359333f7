"""The one thread in which the log and spools are read, so that a slow disk never stops the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from broker_core.clock import Clock, thread_cpu_seconds

T = TypeVar("T")
P = ParamSpec("P")


class ReaderThread:
    """Work is done in the order in which it was asked for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "reader")
        self.took_ms = 0
        """How long the last read took, with its turn in the queue."""
        self.worked_s = 0.0
        """The CPU time of the last read alone, in seconds."""
        self.pending = 0
        """Reads that are asked for and not done."""

    def run(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> asyncio.Future[T]:
        """Read where it doesn't stop the loop. It is queued at once, awaited or not."""
        begun = self._clock.monotonic_ms()
        self.pending += 1

        def read() -> T:
            before = thread_cpu_seconds()
            try:
                return work(*arguments, **named)
            finally:
                self.worked_s = thread_cpu_seconds() - before

        reading = asyncio.get_running_loop().run_in_executor(self._thread, read)
        reading.add_done_callback(lambda _: self._took(begun))
        return reading

    def _took(self, begun: int) -> None:
        self.pending -= 1
        self.took_ms = self._clock.monotonic_ms() - begun

    def close(self) -> None:
        """Finish what was asked for."""
        self._thread.shutdown(wait=True)
