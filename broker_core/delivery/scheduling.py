"""How replays share the loop, the reader thread and the memory, and how they spare live delivery.

Without live traffic a replay goes as fast as its client. While messages are being published, all replays together
stand in one line: a turn (one chunk read, checked and handed to a socket) is followed by a rest that is some times as
long, so that they take a fixed share of the loop however many they are and however fast their clients read.

Who takes turns on the loop, so that what many want done at once delays nobody else by more than a budget.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from broker_core.clock import Clock

FIRST_CHUNK = 16 * 1024
"""Journal bytes of a replay's first turn, and after its client stopped reading."""
LARGEST_CHUNK = 1024 * 1024
LARGEST_BESIDE_LIVE = 128 * 1024
"""Bytes of a turn while messages are published: a bound on how long one keeps the loop."""
CHUNKS_BUDGET = 8 * 1024 * 1024
"""Bytes that the chunks of all replays may have together, each counted once, as long as each has FIRST_CHUNK."""
TAKEN_BEFORE = 16
"""How many times a chunk's bytes a client must have taken before its chunks are as large."""
CUT_BEFORE = 512 * 1024
"""Bytes that a client must have taken since it last stopped before larger batches than its chunks are passed uncut. The
kernels take some 300 KB for one that reads nothing; for one that reads, cutting each batch would cost more than sending it."""
READS_AT_ONCE = 32
"""Chunks that were asked of the reader thread and aren't taken yet: a thousand replays that begin together would otherwise
each have one in memory. Those read ahead for fast clients come on top."""
REST = 3.0
"""A turn's rest beside live traffic, in lengths of a turn: a quarter of the loop is the replays'."""
LATE_S = 0.25
"""Of rests that were too long since the loop ran late, so much is made up for. With one turn in each round of a loop that is taken
for 80 ms, a thousand clients would wait for minutes."""
BUSY_FOR_S = 0.1
"""For so long after messages came or were delivered there is live traffic."""


class ReplayFairShare:
    """The replays of one instance."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.replays = 0
        self.in_line = 0
        """Replays that wait for a turn."""
        self._live_until = 0.0
        self._free_at = 0.0
        self._late_s = 0.0
        """By how much the line has rested for too long, and not made up for."""
        self._usual_s = 0.0005
        self._line = asyncio.Lock()
        self.reads = asyncio.Semaphore(READS_AT_ONCE)

    def on_live_traffic(self) -> None:
        """Messages have come from a client, or were delivered live."""
        self._live_until = self._clock.seconds() + BUSY_FOR_S

    @property
    def busy(self) -> bool:
        """Whether there is live traffic to be spared."""
        return self._clock.seconds() < self._live_until

    @property
    def max_chunk_bytes(self) -> int:
        """Bytes that a chunk may have now."""
        return LARGEST_BESIDE_LIVE if self.busy else LARGEST_CHUNK

    def grow_chunk(self, chunk_bytes: int, taken_bytes: int) -> int:
        """The next chunk of a replay whose client took the last one at once, and so much since it last stopped."""
        largest = min(self.max_chunk_bytes, taken_bytes // TAKEN_BEFORE)
        return max(min(chunk_bytes * 2, largest, CHUNKS_BUDGET // max(self.replays, 1)), FIRST_CHUNK)

    async def wait_turn(self) -> None:
        """Wait for a turn; at once when there is nothing live to be spared."""
        if not self.busy:
            return
        self.in_line += 1
        try:
            async with self._line:
                await self._rest()
                self._free_at = self._clock.seconds() + self._usual_s * (1 + REST)
        finally:
            self.in_line -= 1

    async def _rest(self) -> None:
        left = self._free_at - self._clock.seconds()
        if left <= self._late_s:
            self._late_s -= max(left, 0.0)
            return
        wakes_at = self._free_at - self._late_s
        await asyncio.sleep(left - self._late_s)
        self._late_s = min(self._clock.seconds() - wakes_at, LATE_S)

    def charge(self, seconds: float) -> None:
        """A turn has cost so much of the loop and of the reader thread. Not how long it waited for them: a line whose rests grew with
        the loop's lateness would come to a stop when the loop has most to make up for."""
        self._usual_s += (seconds - self._usual_s) / 8


class AdaptiveChunkSize:
    """Bytes of one client's next chunk: small at first, and more while it takes everything at once."""

    __slots__ = ("_share", "nbytes", "taken_bytes")

    def __init__(self, share: ReplayFairShare) -> None:
        self._share = share
        self.reset()

    def reset(self) -> None:
        """The client has stopped, or reads again."""
        self.nbytes, self.taken_bytes = FIRST_CHUNK, 0

    def grow(self) -> None:
        """The client took a chunk at once."""
        self.taken_bytes += self.nbytes
        self.nbytes = self._share.grow_chunk(self.nbytes, self.taken_bytes)

    @property
    def is_read_ahead_useful(self) -> bool:
        """Whether the next chunk is better read while the client takes the one before."""
        return self.nbytes > FIRST_CHUNK and not self._share.busy


TURN_NS: Final = 2_000_000
"""How long one client's commands may keep the loop in a turn, and all that stand in the line together; what was begun last is
finished. Some 60 small publishes; a large batch is one, so that a turn more for each costs it nothing that could be measured."""


class WorkScheduler:
    """An instance's line of whoever has more to do than one turn of the loop should take: inboxes beyond their budget, shared
    subscriptions that deal, clients that leave together. They may keep the loop for one budget a turn, however many they are, and
    whoever has had some goes to the line's end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._line: deque[Callable[[], int]] = deque()
        self._scheduled = False
        self._spent_ns = 0
        """By those that left in this turn."""

    def add_recurring(self, go_on: Callable[[], int]) -> None:
        """Call this in a later turn; it says how long it took, in ns."""
        self._line.append(go_on)
        self._schedule()

    def call_later_turn(self, act: Callable[[], None]) -> None:
        """Call this in a later turn."""
        self.add_recurring(partial(self._timed, act))

    def call_within_budget(self, left: Callable[[], None]) -> None:
        """Call this now, or in a later turn: what ends with a client of a thousand subscriptions takes a turn's budget alone, and
        hundreds may be cut off at once."""

        if self._line or self._spent_ns >= TURN_NS:
            self.call_later_turn(left)
            return
        if not self._spent_ns:
            asyncio.get_running_loop().call_soon(self._begin_anew)
        self._spent_ns += self._timed(left)

    def _timed(self, act: Callable[[], None]) -> int:
        began = self._clock.monotonic_ns()
        act()
        return self._clock.monotonic_ns() - began

    def _begin_anew(self) -> None:
        self._spent_ns = 0

    def _schedule(self) -> None:
        if self._line and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        spent = 0
        try:
            for _ in range(len(self._line)):
                spent += self._line.popleft()()
                if spent >= TURN_NS:
                    break
        finally:
            self._schedule()
