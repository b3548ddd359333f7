"""How fast a replay may go: a rate, and the pacer that holds it. Pure: time is passed in.

A pacer keeps one number, the moment at which the next record is due. Each record moves it on: by 1/rate, by its
bytes/rate, or by the time that passed before it when it was recorded, divided by the multiple. A record goes when it
is due and never before, so what a timer or a socket delays is made up by the records after it; but only up to
MAX_LATE_NS, because a client that didn't read for a minute must not get a minute's records at once. Over any ten
seconds a replay is hence within 1 % of its rate, give or take the one record that can't be divided (seed 002).

Holds a replay to its rate: asks the pacer, sleeps until something is due, cuts batches where the rate does.
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
"""Lateness that is made up: 1 % of ten seconds."""
GRAIN_NS: Final = 10_000_000
"""A paced replay wakes once in this time at most, and takes what is due by then together."""

Unit = Literal["messages", "bytes", "recorded"]


@dataclass(frozen=True, slots=True)
class ReplayRate:
    """Messages or bytes (of headers and bodies) per second, or a multiple of the recorded pace."""

    unit: Unit
    amount: float
    text: str
    """As the client wrote it."""
    max_gap_ns: int | None = None
    """The longest wait for one record, of a multiple of the recorded pace; None: as long as it takes."""


def parse_rate(text: str, max_gap: str | None = None) -> ReplayRate:
    """The rate `1000` (messages), `500KB` (bytes; KB is 1,000 and KiB 1,024) or `2X`, `.5X` (of the recorded pace).

    `max_gap` is an interval such as `10s`: how long the replay waits for one record at most, as its client sees it
    (at 5X and 10s, recorded pauses above 50 s are shortened to 50 s). Raises ClientError bad_rate or bad_interval.
    """
    try:
        number, unit = split_unit(text)
        amount = float(number)
    except ValueError:
        amount, unit = 0.0, ""
    of_bytes = unit in BYTES and unit.endswith("b")  # a thousand messages may be meant by 1k
    if not (amount > 0 and (of_bytes or unit in ("", "x"))):
        raise ClientError(
            "bad_rate",
            f"{text[:40]!r} isn't a rate.",
            "Write messages per second (1000), bytes per second (500KB), or a multiple of the recorded pace (2X, .5X).",
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
    """Says how many records may go now, and when to ask again. One per replay."""

    __slots__ = ("_due", "_recorded_at", "rate")

    def __init__(self, rate: ReplayRate, now: int) -> None:
        self.rate = rate
        self._due = float(now)
        self._recorded_at: int | None = None

    def set_rate(self, rate: ReplayRate, now: int) -> None:
        """Go on at another rate: the record that is next waits no longer than the new one makes it."""
        self.rate = rate
        self._due = min(self._due, float(now))

    def allowed_now(self, now: int, recorded_at: int, sizes: npt.NDArray[np.int64]) -> int:
        """How many of these records, which were accepted at one moment, may go now: the first 0 to len(sizes).

        `sizes` are bytes. What is granted counts as gone; ask for the others again, later, from the first of them.
        """
        if self.rate.unit == "recorded":
            return len(sizes) if self._reached(now, recorded_at) else 0
        due = max(self._due, now - MAX_LATE_NS)
        if due > now:
            return 0
        costs = self._costs(sizes)
        # A record is due when those before it are paid for.
        ends = np.cumsum(costs)
        number = int(np.searchsorted(ends - costs, now - due, side="right"))
        self._due = due + float(ends[number - 1])
        return number

    def next_allowed_at(self, now: int, recorded_at: int) -> int:
        """When to ask again after a grant that wasn't whole, for a record accepted at that moment; ns."""
        due = self._due_of(recorded_at) if self.rate.unit == "recorded" else self._due
        return max(int(due) + 1, now + GRAIN_NS)

    def _costs(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        each = 1e9 / self.rate.amount
        return np.multiply(sizes, each) if self.rate.unit == "bytes" else np.full(len(sizes), each)

    def _reached(self, now: int, recorded_at: int) -> bool:
        due = max(self._due_of(recorded_at), now - MAX_LATE_NS)
        if due > now:
            return False
        self._due, self._recorded_at = due, max(recorded_at, self._recorded_at or 0)
        return True

    def _due_of(self, recorded_at: int) -> float:
        if self._recorded_at is None:
            return self._due
        # The clock of the recording may have been set back: then nothing is waited for.
        wait = max(0, recorded_at - self._recorded_at) / self.rate.amount
        return self._due + (wait if self.rate.max_gap_ns is None else min(wait, self.rate.max_gap_ns))


LONGEST_WAIT_NS = 60_000_000_000


class ReplayRateLimiter:
    """The rate of one replay. It may be changed and lifted while the replay waits."""

    def __init__(self, rate: ReplayRate | None, now: Callable[[], int]) -> None:
        self._now = now
        self._pacer = ReplayPacer(rate, now()) if rate is not None else None
        self._changed = asyncio.Event()
        # The piece that is being cut, and the bytes of its records, so that each cut costs what it cuts.
        self._front: BatchSlice | None = None
        self._sizes: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def rate(self) -> ReplayRate | None:
        """What is in force; None: as fast as its client takes it."""
        return self._pacer.rate if self._pacer is not None else None

    def set_rate(self, rate: ReplayRate | None) -> None:
        if rate is None:
            self._pacer = None
        elif self._pacer is None:
            self._pacer = ReplayPacer(rate, self._now())
        else:
            self._pacer.set_rate(rate, self._now())
        self._changed.set()

    def admit_batch(self, waiting: deque[BatchSlice]) -> tuple[list[BatchSlice], int]:
        """Take from the front what may go now; what is cut off stays there. When to ask again for the rest (0: it is all)."""
        admitted: list[BatchSlice] = []
        while waiting and self._pacer is not None:
            piece, now = waiting[0], self._now()
            sizes = self._sizes_of(piece)
            number = self._pacer.allowed_now(now, piece.recorded_at, sizes)
            if number:
                admitted.append(piece.first(number))
            if number < len(sizes):
                waiting[0] = self._front = piece.rest_after(number)
                self._sizes = sizes[number:]
                return admitted, self._pacer.next_allowed_at(now, piece.recorded_at)
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
