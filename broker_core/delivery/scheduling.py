"""Schedulers of one instance: they limit replays beside live delivery, and spread long work.

`ReplayFairShare`: without live traffic a replay goes as fast as its client reads. While messages are being
published, all replays together wait in one line. Each slot (one chunk read, checked and handed to a socket)
is followed by a rest that is PAUSE_PER_SLOT times as long. So replays use a fixed share of the loop, however
many they are and however fast their clients read.

`WorkScheduler`: work of many clients in one event-loop iteration delays other work by one budget at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from broker_core.clock import Clock

FIRST_CHUNK_BYTES = 16 * 1024
"""Journal bytes of a replay's first chunk, and of the first one after its client stopped reading."""
MAX_CHUNK_BYTES = 1024 * 1024
"""Maximum bytes of a chunk without live traffic."""
MAX_CHUNK_BYTES_BESIDE_LIVE = 128 * 1024
"""Maximum bytes of a chunk while messages are published. It bounds how long one chunk occupies the loop."""
MAX_ALL_CHUNKS_BYTES = 8 * 1024 * 1024
"""Maximum bytes of the chunks of all replays together, each counted once.

Each replay may have FIRST_CHUNK_BYTES in any case.
"""
READ_BYTES_PER_CHUNK_BYTE = 16
"""A chunk has at most 1/16 of the bytes that the client has read since it last stopped."""
UNCUT_AFTER_BYTES = 512 * 1024
"""Bytes that a client must read after a stop before batches larger than its chunks are sent uncut.

The kernels buffer some 300 KB for a client that reads nothing. For a client that reads, cutting each batch
would cost more than sending it.
"""
MAX_CONCURRENT_READS = 32
"""Maximum number of chunks that the reader thread has been given and the replays haven't received.

A thousand replays that begin together would otherwise each have one in memory. Chunks read ahead for fast
clients are not included.
"""
PAUSE_PER_SLOT = 3.0
"""Rest after a slot beside live traffic, in lengths of the slot: replays get a quarter of the loop."""
MAX_LATENESS_S = 0.25
"""Maximum seconds that later rests are shortened by, if a rest was too long because the loop ran late.

Otherwise, with one slot per iteration of a loop that is busy for 80 ms, a thousand clients would wait for
minutes.
"""
LIVE_TRAFFIC_TIMEOUT_S = 0.1
"""Seconds for which live traffic counts as present after a message was received or delivered."""


class ReplayFairShare:
    """Fair share of the event loop for the replays of one instance."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.replays = 0
        self.waiting_replays = 0
        """Number of replays that wait for a slot."""
        self._live_until = 0.0
        self._free_at = 0.0
        self._late_s = 0.0
        """Seconds by which rests were too long and have not been made up for."""
        self._mean_slot_s = 0.0005
        self._slot_lock = asyncio.Lock()
        self.reads = asyncio.Semaphore(MAX_CONCURRENT_READS)

    def on_live_traffic(self) -> None:
        """Note that a client published messages, or that messages were delivered live."""
        self._live_until = self._clock.seconds() + LIVE_TRAFFIC_TIMEOUT_S

    @property
    def is_busy(self) -> bool:
        """Whether there is live traffic to be spared."""
        return self._clock.seconds() < self._live_until

    @property
    def max_chunk_bytes(self) -> int:
        """Maximum bytes of a chunk now."""
        return MAX_CHUNK_BYTES_BESIDE_LIVE if self.is_busy else MAX_CHUNK_BYTES

    def grow_chunk(self, chunk_bytes: int, read_bytes: int) -> int:
        """Return the bytes of the next chunk of a replay whose client read the last chunk immediately.

        `read_bytes`: bytes that the client has read since it last stopped.
        """
        largest = min(self.max_chunk_bytes, read_bytes // READ_BYTES_PER_CHUNK_BYTE)
        return max(
            min(chunk_bytes * 2, largest, MAX_ALL_CHUNKS_BYTES // max(self.replays, 1)), FIRST_CHUNK_BYTES
        )

    async def wait_slot(self) -> None:
        """Wait for a slot. Returns immediately when there is no live traffic."""
        if not self.is_busy:
            return
        self.waiting_replays += 1
        try:
            async with self._slot_lock:
                await self._pause()
                self._free_at = self._clock.seconds() + self._mean_slot_s * (1 + PAUSE_PER_SLOT)
        finally:
            self.waiting_replays -= 1

    async def _pause(self) -> None:
        """Rest until the next slot may begin.

        A rest that was too long shortens the next ones by at most MAX_LATENESS_S.
        """
        remaining_s = self._free_at - self._clock.seconds()
        if remaining_s <= self._late_s:
            self._late_s -= max(remaining_s, 0.0)
            return
        due_at = self._free_at - self._late_s
        await asyncio.sleep(remaining_s - self._late_s)
        self._late_s = min(self._clock.seconds() - due_at, MAX_LATENESS_S)

    def charge(self, seconds: float) -> None:
        """Record the seconds that a slot used the loop and the reader thread, without waiting time.

        If rests grew with the loop's lateness, replays would stop when the loop has most work to catch up on.
        """
        self._mean_slot_s += (seconds - self._mean_slot_s) / 8


class AdaptiveChunkSize:
    """Size of one client's next chunk: small at first, doubled when the client reads a chunk immediately."""

    __slots__ = ("_share", "nbytes", "read_bytes")

    def __init__(self, share: ReplayFairShare) -> None:
        self._share = share
        self.reset()

    def reset(self) -> None:
        """Start again with small chunks, because the client has stopped, or reads again."""
        self.nbytes, self.read_bytes = FIRST_CHUNK_BYTES, 0

    def grow(self) -> None:
        """Record that the client read a chunk immediately, and compute the size of the next one."""
        self.read_bytes += self.nbytes
        self.nbytes = self._share.grow_chunk(self.nbytes, self.read_bytes)

    @property
    def is_read_ahead_useful(self) -> bool:
        """Whether the next chunk should be read from the log while the client reads the current one."""
        return self.nbytes > FIRST_CHUNK_BYTES and not self._share.is_busy


ITERATION_BUDGET_NS: Final = 2_000_000
"""Maximum time per event-loop iteration, ns, of one client's commands, and of all scheduled work.

The work in progress is finished. It is some 60 small publishes. A large batch is one unit, so that an
additional iteration for each costs nothing measurable.
"""


class WorkScheduler:
    """Queue of work that is spread over several event-loop iterations.

    Examples: inboxes beyond their budget, shared subscriptions that assign records, clients that disconnect
    together. All work in the line together gets ITERATION_BUDGET_NS per iteration. Recurring work rejoins
    the line at its end.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._work: deque[Callable[[], int]] = deque()
        self._scheduled = False
        self._spent_ns = 0
        """Time used by `call_within_budget` in this iteration, ns."""

    def add_recurring(self, go_on: Callable[[], int]) -> None:
        """Call `go_on` once in a later iteration.

        It returns how long it took, ns, and adds itself again if it needs more.
        """
        self._work.append(go_on)
        self._schedule()

    def call_in_later_iteration(self, callback: Callable[[], None]) -> None:
        """Call `callback` in a later iteration."""
        self.add_recurring(partial(self._run_timed, callback))

    def call_within_budget(self, callback: Callable[[], None]) -> None:
        """Call `callback` now, or in a later iteration if this one's budget is used up.

        The disconnection of a client with a thousand subscriptions uses a whole budget, and hundreds may be
        cut off together.
        """

        if self._work or self._spent_ns >= ITERATION_BUDGET_NS:
            self.call_in_later_iteration(callback)
            return
        if not self._spent_ns:
            asyncio.get_running_loop().call_soon(self._reset_budget)
        self._spent_ns += self._run_timed(callback)

    def _run_timed(self, callback: Callable[[], None]) -> int:
        began = self._clock.monotonic_ns()
        callback()
        return self._clock.monotonic_ns() - began

    def _reset_budget(self) -> None:
        self._spent_ns = 0

    def _schedule(self) -> None:
        if self._work and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run_work)

    def _run_work(self) -> None:
        """Do the work of the line until the budget is used up. Each item in the line runs at most once."""
        self._scheduled = False
        spent = 0
        try:
            for _ in range(len(self._work)):
                spent += self._work.popleft()()
                if spent >= ITERATION_BUDGET_NS:
                    break
        finally:
            self._schedule()
