"""Holds a replay to its rate: asks the pacer, sleeps until something is due, cuts batches where the rate does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from broker_core.delivery.entries import BatchSlice
from broker_core.replay.pacer import Pacer, Rate

LONGEST_WAIT_NS = 60_000_000_000


class Pace:
    """The rate of one replay. It may be changed and lifted while the replay waits."""

    def __init__(self, rate: Rate | None, now: Callable[[], int]) -> None:
        self._now = now
        self._pacer = Pacer(rate, now()) if rate is not None else None
        self._changed = asyncio.Event()
        # The piece that is being cut, and the bytes of its records, so that each cut costs what it cuts.
        self._front: BatchSlice | None = None
        self._sizes: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def rate(self) -> Rate | None:
        """What is in force; None: as fast as its client takes it."""
        return self._pacer.rate if self._pacer is not None else None

    def change(self, rate: Rate | None) -> None:
        if rate is None:
            self._pacer = None
        elif self._pacer is None:
            self._pacer = Pacer(rate, self._now())
        else:
            self._pacer.change(rate, self._now())
        self._changed.set()

    def admit(self, waiting: deque[BatchSlice]) -> tuple[list[BatchSlice], int]:
        """Take from the front what may go now; what is cut off stays there. When to ask again for the rest (0: it is all)."""
        admitted: list[BatchSlice] = []
        while waiting and self._pacer is not None:
            piece, now = waiting[0], self._now()
            sizes = self._sizes_of(piece)
            number = self._pacer.grant(now, piece.recorded_at, sizes)
            if number:
                admitted.append(piece.first(number))
            if number < len(sizes):
                waiting[0] = self._front = piece.after(number)
                self._sizes = sizes[number:]
                return admitted, self._pacer.wake_at(now, piece.recorded_at)
            waiting.popleft()
        admitted += [piece.first(piece.batch.count - piece.start) for piece in waiting]
        waiting.clear()
        return admitted, 0

    async def wait(self, wake_at: int) -> None:
        """Until that moment, or until the rate changes."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(max(wake_at - self._now(), 0), LONGEST_WAIT_NS) / 1e9):
                await self._changed.wait()

    def _sizes_of(self, piece: BatchSlice) -> npt.NDArray[np.int64]:
        if self._front is not piece:
            self._front, self._sizes = piece, piece.sizes()
        return self._sizes
