"""Rate of a replay: parsing, the pacer that computes due times, and the limiter that waits for them.

A pacer stores one number, the due time of the next record. Each record moves it on: by 1/rate, by its
bytes/rate, or by the time between it and its predecessor in the recording, divided by the multiple. A record
is delivered when it is due and never before. Later records catch up on delays by timers and sockets, but only
up to MAX_LATE_NS: a client that didn't read for a minute must not get a minute's records in one burst. Over
any ten seconds a replay is hence within 1 % of its rate, give or take one record, which can't be divided
(seed 002).

The pacer is pure: time is an argument. `ReplayRateLimiter` sleeps until a record is due, and cuts batches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from broker_core.delivery.entries import BatchSlice
from broker_core.errors import ClientError
from broker_core.quantities import BYTES, parse_client_interval, split_unit

MAX_LATE_NS: Final = 100_000_000
"""Maximum lateness that is caught up: 1 % of ten seconds, in ns."""
GRAIN_NS: Final = 10_000_000
"""Shortest time between two wake-ups of a replay with a rate; records due by then are delivered together."""

Unit = Literal["messages", "bytes", "recorded"]
"""Unit of a rate; "recorded" is a multiple of the recorded pace."""


@dataclass(frozen=True, slots=True)
class ReplayRate:
    """Messages or bytes (of headers and bodies) per second, or a multiple of the recorded pace."""

    unit: Unit
    amount: float
    text: str
    """Rate as the client wrote it."""
    max_gap_ns: int | None = None
    """Longest wait for one record at a multiple of the recorded pace; None: no limit."""


def parse_rate(text: str, max_gap: str | None = None) -> ReplayRate:
    """Parse a rate: `1000` (messages/s), `500KB` (bytes/s) or `2X`, `.5X` (multiple of the recorded pace).

    KB is 1,000 bytes and KiB 1,024. `max_gap` is an interval such as `10s`: the longest time that the replay
    waits for one record, as its client sees it (at 5X and 10s, recorded pauses above 50 s are shortened to 50
    s). Raises ClientError bad_rate or bad_interval.
    """
    try:
        number, unit = split_unit(text)
        amount = float(number)
    except ValueError:
        amount, unit = 0.0, ""
    of_bytes = unit in BYTES and unit.endswith("b")  # `1k` is refused: it could mean a thousand messages
    if not (amount > 0 and (of_bytes or unit in ("", "x"))):
        raise ClientError(
            "bad_rate",
            f"{text[:40]!r} isn't a rate.",
            "Write messages per second (1000), bytes per second (500KB), or a multiple of the recorded pace"
            " (2X, .5X).",
            field="rate",
        )
    if unit == "x":
        gap = parse_client_interval(max_gap, "rate_max_gap") if max_gap is not None else None
        return ReplayRate("recorded", amount, text, gap)
    if max_gap is not None:
        raise ClientError(
            "bad_rate",
            "rate_max_gap shortens recorded pauses, and this rate doesn't follow them.",
            "Leave it out, or give a multiple such as 2X.",
            field="rate_max_gap",
        )
    return (
        ReplayRate("bytes", amount * BYTES[unit], text) if of_bytes else ReplayRate("messages", amount, text)
    )


class ReplayPacer:
    """Computes how many records of one replay are due, and when the next one is."""

    __slots__ = ("_due", "_recorded_at", "rate")

    def __init__(self, rate: ReplayRate, now: int) -> None:
        self.rate = rate
        self._due = float(now)
        self._recorded_at: int | None = None

    def set_rate(self, rate: ReplayRate, now: int) -> None:
        """Change the rate. The next record is due at the earlier of its old due time and `now`."""
        self.rate = rate
        self._due = min(self._due, float(now))

    def allowed_now(self, now: int, recorded_at: int, sizes: npt.NDArray[np.int64]) -> int:
        """Return how many of these records are due: the first 0 to len(sizes). They count as delivered.

        The caller asks again for the remaining ones later.

        Args:
            now: Monotonic time, ns.
            recorded_at: Acceptance time that all of these records share, ns UTC.
            sizes: Bytes of each record.
        """
        if self.rate.unit == "recorded":
            return len(sizes) if self._reached(now, recorded_at) else 0
        due = max(self._due, now - MAX_LATE_NS)
        if due > now:
            return 0
        costs = self._costs(sizes)
        # A record is due when the records before it are paid for.
        ends = np.cumsum(costs)
        number = int(np.searchsorted(ends - costs, now - due, side="right"))
        self._due = due + float(ends[number - 1])
        return number

    def next_allowed_at(self, now: int, recorded_at: int) -> int:
        """Return when to ask again (monotonic ns), for a next record accepted at `recorded_at`."""
        due = self._due_of(recorded_at) if self.rate.unit == "recorded" else self._due
        return max(int(due) + 1, now + GRAIN_NS)

    def _costs(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return for each record the ns that it delays the next one."""
        each = 1e9 / self.rate.amount
        return np.multiply(sizes, each) if self.rate.unit == "bytes" else np.full(len(sizes), each)

    def _reached(self, now: int, recorded_at: int) -> bool:
        """Return whether records accepted at `recorded_at` are due; if so, count them as delivered."""
        due = max(self._due_of(recorded_at), now - MAX_LATE_NS)
        if due > now:
            return False
        self._due, self._recorded_at = due, max(recorded_at, self._recorded_at or 0)
        return True

    def _due_of(self, recorded_at: int) -> float:
        """Return when a record accepted at `recorded_at` is due, relative to the newest delivered one."""
        if self._recorded_at is None:
            return self._due
        # The clock of the recording may have been set back: then the wait is 0.
        wait = max(0, recorded_at - self._recorded_at) / self.rate.amount
        return self._due + (wait if self.rate.max_gap_ns is None else min(wait, self.rate.max_gap_ns))


LONGEST_WAIT_NS = 60_000_000_000
"""Longest sleep before the clock is read again."""


class ReplayRateLimiter:
    """Rate limit of one replay. The rate can be changed or removed while the replay waits."""

    def __init__(self, rate: ReplayRate | None, now: Callable[[], int]) -> None:
        self._now = now
        self._pacer = ReplayPacer(rate, now()) if rate is not None else None
        self._rate_changed = asyncio.Event()
        # The slice that is being cut, and the bytes of its records: a cut then costs no more than the records
        # cut off.
        self._front: BatchSlice | None = None
        self._sizes: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def rate(self) -> ReplayRate | None:
        """Rate in force; None: as fast as the client reads."""
        return self._pacer.rate if self._pacer is not None else None

    def set_rate(self, rate: ReplayRate | None) -> None:
        """Set the rate, or None to remove it, and wake a waiting replay."""
        if rate is None:
            self._pacer = None
        elif self._pacer is None:
            self._pacer = ReplayPacer(rate, self._now())
        else:
            self._pacer.set_rate(rate, self._now())
        self._rate_changed.set()

    def admit_batch(self, waiting: deque[BatchSlice]) -> tuple[list[BatchSlice], int]:
        """Remove the slices that are due from the front of `waiting` and return them.

        Also returns the monotonic time (ns) to ask again, or 0 when nothing remains. The undue rest of a
        slice stays in the deque.
        """
        admitted: list[BatchSlice] = []
        while waiting and self._pacer is not None:
            batch_slice, now = waiting[0], self._now()
            sizes = self._sizes_of(batch_slice)
            number = self._pacer.allowed_now(now, batch_slice.recorded_at, sizes)
            if number:
                admitted.append(batch_slice.first(number))
            if number < len(sizes):
                waiting[0] = self._front = batch_slice.drop_first(number)
                self._sizes = sizes[number:]
                return admitted, self._pacer.next_allowed_at(now, batch_slice.recorded_at)
            waiting.popleft()
        admitted += [
            batch_slice.first(batch_slice.batch.count - batch_slice.start) for batch_slice in waiting
        ]
        waiting.clear()
        return admitted, 0

    async def wait(self, wake_at: int) -> None:
        """Wait until `wake_at` (monotonic ns) or until the rate changes."""
        self._rate_changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(max(wake_at - self._now(), 0), LONGEST_WAIT_NS) / 1e9):
                await self._rate_changed.wait()

    def _sizes_of(self, batch_slice: BatchSlice) -> npt.NDArray[np.int64]:
        """Return the bytes of each record of the front slice, computed once per slice."""
        if self._front is not batch_slice:
            self._front, self._sizes = batch_slice, batch_slice.sizes()
        return self._sizes
