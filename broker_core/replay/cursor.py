"""A subscription's cursor: where it goes on in the log, and what it is doing. The one owner of both.

    STARTING ──READ──▶ REPLAYING ──CAUGHT_UP──▶ LIVE ──FALL_BACK──▶ CATCHING_UP ──CAUGHT_UP──▶ LIVE
        └──CAUGHT_UP──▶ LIVE          LIVE ──READ──▶ REPLAYING (it has a rate now, or was resumed)
    STARTING, REPLAYING, CATCHING_UP, LIVE ──PAUSE──▶ PAUSED ──READ──▶ REPLAYING
    every state ──END──▶ ENDED

The law of the hand-over: replay(b) then live equals everything after b, once, in order. A replay reads whole batches, and
takes from each what is at the cursor or after it; the cursor passes what was given, never backwards but for what is given
back unsent. A live subscription stands behind everything that is dispatched.

OFFLINED and DRAINING are the client's (`delivery.lifecycle`): one spool serves all of its live subscriptions.

How far the log goes, for those who follow it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

from broker_core.replay.span import ReplaySpan


class CursorState(StrEnum):
    """What a subscription is doing."""

    STARTING = "starting"
    REPLAYING = "replaying"
    CATCHING_UP = "catching_up"
    """It was live and fell behind: it reads from the log what it couldn't be sent, and comes back."""
    LIVE = "live"
    PAUSED = "paused"
    ENDED = "ended"


class CursorEvent(StrEnum):
    """What may happen to it."""

    READ = "read"
    """It is served from the log."""
    CAUGHT_UP = "caught_up"
    """It has everything that was dispatched, and gets the rest as it comes."""
    FALL_BACK = "fall_back"
    """Its client takes less than comes: it reads it from the log instead."""
    PAUSE = "pause"
    END = "end"


_R: Final = CursorState
STEPS: Final[dict[CursorEvent, tuple[frozenset[CursorState], CursorState]]] = {
    CursorEvent.READ: (frozenset(CursorState) - {_R.ENDED}, _R.REPLAYING),
    CursorEvent.CAUGHT_UP: (frozenset({_R.STARTING, _R.REPLAYING, _R.CATCHING_UP}), _R.LIVE),
    CursorEvent.FALL_BACK: (frozenset({_R.LIVE}), _R.CATCHING_UP),
    CursorEvent.PAUSE: (frozenset(CursorState) - {_R.PAUSED, _R.ENDED}, _R.PAUSED),
    CursorEvent.END: (frozenset(CursorState), _R.ENDED),
}
"""From where each step can be taken, and where it leads."""


class IllegalCursorEvent(RuntimeError):
    """The step can't be taken from there: a mistake of ours, never of a peer. The cursor is unchanged."""

    def __init__(self, state: CursorState, step: CursorEvent) -> None:
        super().__init__(f"{step.value} can't happen to a subscription that is {state.value}")


class Cursor:
    """`next_sequence` is the first record that the subscription hasn't been given; 0 for one that isn't of the log."""

    __slots__ = ("begun", "next_sequence", "span", "state")

    def __init__(self, span: ReplaySpan | None = None) -> None:
        self.state = CursorState.STARTING
        self.span = span
        """What of the log was asked for; None for a subscription without a bookmark."""
        self.next_sequence = span.first if span is not None else 0
        self.begun = span is None or span.not_before == 0
        """Whether its beginning was met: a moment may be still to come."""

    def apply_event(self, step: CursorEvent, durable: int = 0) -> None:
        """Take a step. One that leaves LIVE goes on behind `durable`, all that was dispatched. Raises IllegalCursorEvent."""
        befores, after = STEPS[step]
        if self.state not in befores:
            raise IllegalCursorEvent(self.state, step)
        if self.state is CursorState.LIVE and after is not CursorState.LIVE and durable:
            self.next_sequence = durable + 1
        self.state = after

    @property
    def is_live(self) -> bool:
        return self.state is CursorState.LIVE

    @property
    def is_paused(self) -> bool:
        return self.state is CursorState.PAUSED

    @property
    def is_ended(self) -> bool:
        return self.state is CursorState.ENDED

    @property
    def is_behind(self) -> bool:
        """Whether it is behind the live end: served from the log, or held where it is."""
        return self.state in (CursorState.REPLAYING, CursorState.CATCHING_UP, CursorState.PAUSED)

    def next_to_deliver(self, durable: int) -> int:
        """The first record that it hasn't been given, when everything up to `durable` is dispatched."""
        return self.next_sequence if self.is_behind else durable + 1

    # Its way through the log.

    def advance_to(self, following: int) -> None:
        """Everything before that record was given, or wasn't for it."""
        self.next_sequence = max(self.next_sequence, following)

    def rewind_to(self, first: int) -> None:
        """From that record on nothing was sent after all."""
        self.next_sequence = first

    def is_caught_up(self, durable: int) -> bool:
        """Whether it has been given everything up to and including that sequence: the moment to go live."""
        return self.next_sequence > durable


RETRY_S: Final = 0.5
"""How long a confirmed read that failed waits before it is tried again."""


class LogEnd:
    """Confirmed reads of the end of a log that other brokers append to as well.

    `read` is one try; it returns the newest record, or None. `was_read_since` shares one read, repeated until
    it succeeds, among all who wait for the end. Moments are monotonic ns.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[int | None]],
        monotonic_ns: Callable[[], int],
        on_read: Callable[[], None],
    ) -> None:
        self.read = read
        self.sequence = 0
        """The newest record at the last shared read."""
        self._monotonic_ns, self._on_read = monotonic_ns, on_read
        self._read_at = 0
        """When the last shared read that succeeded was begun; 0 before the first."""
        self._reading: asyncio.Task[None] | None = None

    def was_read_since(self, moment: int) -> bool:
        """Return whether a shared read succeeded that was begun at that moment or later; begin one if not."""
        if self._read_at >= moment:
            return True
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_shared(), name="end of the log")
        return False

    async def _read_shared(self) -> None:
        try:
            while True:
                at = self._monotonic_ns()
                found = await self.read()
                if found is not None:
                    break
                await asyncio.sleep(RETRY_S)
            self._read_at, self.sequence = at, found
        finally:
            self._reading = None
        self._on_read()

    def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()


class DurableFrontier:
    """One instance's. `durable` is the newest sequence that is on disk and was dispatched to the live subscriptions, the
    durable frontier up to which the log may be read; `stamped` the newest that was given out, which may be
    under way; `shown` the newest that subscriptions with durability `live` were given before it was on
    disk."""

    def __init__(self, durable: int) -> None:
        self.durable = self.stamped = self.shown = durable
        self.end: LogEnd | None = None
        """Where other brokers append to the log as well; without them it ends with `stamped`."""
        self._news = asyncio.Event()

    async def confirm(self) -> int | None:
        """Return the newest record of the log, None when that can't be told within a few seconds."""
        return self.durable if self.end is None else await self.end.read()

    def advance(self, durable: int) -> None:
        """Everything up to there is on disk and dispatched."""
        self.durable = durable
        self.notify_waiters()

    def notify_waiters(self) -> None:
        """Those that wait for news should look again."""
        self._news.set()
        self._news.clear()

    async def wait_advanced(self) -> None:
        """Wait until more of the log may be read."""
        await self._news.wait()
