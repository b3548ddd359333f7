"""Cursor of a subscription: its next sequence in the log and its state; also the durable frontier of the log.

    STARTING ──READ──▶ REPLAYING ──CAUGHT_UP──▶ LIVE ──FALL_BACK──▶ CATCHING_UP ──CAUGHT_UP──▶ LIVE
        └──CAUGHT_UP──▶ LIVE          LIVE ──READ──▶ REPLAYING (a rate was set, or it was resumed)
    STARTING, REPLAYING, CATCHING_UP, LIVE ──PAUSE──▶ PAUSED ──READ──▶ REPLAYING
    every state ──END──▶ ENDED

The law of the step from replay to live: replay(b) followed by live equals everything after b, once, in order.
A replay reads whole batches and selects the records at the cursor or after it. The cursor passes delivered
records and moves backwards only over records that returned unsent to the log. The position of a live
subscription is after every dispatched record.

OFFLINED and DRAINING are states of the client (`delivery.lifecycle`), because one spool serves all of its
live subscriptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Final

from broker_core.journal.removal_records import RemovedInterval
from broker_core.replay.span import LogBounds, ReplaySpan


class CursorState(StrEnum):
    """States of a subscription's cursor."""

    STARTING = "starting"
    """The subscription was created and has neither a replay nor live delivery."""
    REPLAYING = "replaying"
    """A replay reads the log for the subscription."""
    CATCHING_UP = "catching_up"
    """The subscription was live and fell behind: it reads undelivered records from the log, then becomes live
    again."""
    LIVE = "live"
    """The subscription gets records as they arrive."""
    PAUSED = "paused"
    """The client or an operator stopped the subscription at its position."""
    ENDED = "ended"


class CursorEvent(StrEnum):
    """Events that change the state of a cursor."""

    READ = "read"
    """A replay starts to serve the subscription from the log."""
    CAUGHT_UP = "caught_up"
    """The subscription has every dispatched record and receives new ones as they arrive."""
    FALL_BACK = "fall_back"
    """The client reads more slowly than records arrive: the subscription reads them from the log instead."""
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
"""For each event, the states it may occur in and the state it leads to."""


class IllegalCursorEvent(RuntimeError):
    """An event that the current state does not allow: a bug in the broker, never an error of a client.

    The cursor is unchanged.
    """

    def __init__(self, state: CursorState, step: CursorEvent) -> None:
        super().__init__(f"{step.value} can't happen to a subscription that is {state.value}")


class Cursor:
    """Next sequence and state of one subscription in the log.

    `next_sequence` is the first record that the subscription has not been given; 0 for a subscription without
    a bookmark.
    """

    __slots__ = ("has_reached_start", "next_sequence", "span", "state")

    def __init__(self, span: ReplaySpan | None = None) -> None:
        self.state = CursorState.STARTING
        self.span = span
        """Requested range of the log; None for a subscription without a bookmark."""
        self.next_sequence = span.first if span is not None else 0
        self.has_reached_start = span is None or span.not_before == 0
        """Whether the start of the span was reached. A span may begin at a moment in the future."""

    def apply_event(self, step: CursorEvent, durable: int = 0) -> None:
        """Change the state by an event.

        A cursor that leaves LIVE continues after `durable`, the newest dispatched sequence. Raises
        IllegalCursorEvent when the state does not allow the event.
        """
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
        """Whether the subscription is behind the live end: it reads from the log, or is paused."""
        return self.state in (CursorState.REPLAYING, CursorState.CATCHING_UP, CursorState.PAUSED)

    def next_to_deliver(self, durable: int) -> int:
        """Return the first undelivered sequence, when every record up to `durable` is dispatched."""
        return self.next_sequence if self.is_behind else durable + 1

    # The next sequence.

    def advance_to(self, following: int) -> None:
        """Move forward to sequence `following`: earlier records were delivered or did not match.

        Never moves back.
        """
        self.next_sequence = max(self.next_sequence, following)

    def rewind_to(self, first: int) -> None:
        """Move back to sequence `first`: it and later records returned unsent to the log."""
        self.next_sequence = first

    def is_caught_up(self, durable: int) -> bool:
        """Whether every record up to and including `durable` was given: the subscription can become live."""
        return self.next_sequence > durable


RETRY_S: Final = 0.5
"""Delay before a failed confirmed read is repeated."""


class LogEnd:
    """Confirmed reads of the end of a log that other brokers also append to.

    `read` makes one attempt; it returns the newest sequence, or None. `was_read_since` shares one read among
    all waiting replays and repeats it until it succeeds. Moments are monotonic ns.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[int | None]],
        monotonic_ns: Callable[[], int],
        on_read: Callable[[], None],
    ) -> None:
        self.read = read
        self.sequence = 0
        """Newest record at the last shared read."""
        self._monotonic_ns, self._on_read = monotonic_ns, on_read
        self._read_at = 0
        """Start of the last successful shared read, monotonic ns; 0 before the first."""
        self._reading: asyncio.Task[None] | None = None

    def was_read_since(self, moment: int) -> bool:
        """Return whether a shared read that started at `moment` or later has succeeded; start one if not."""
        if self._read_at >= moment:
            return True
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_shared(), name="end of the log")
        return False

    async def _read_shared(self) -> None:
        """Read the end until a read succeeds, then store it and wake the waiting replays."""
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
        """Cancel the shared read."""
        if self._reading is not None:
            self._reading.cancel()


class DurableFrontier:
    """Positions of one instance's log, and a wait for progress.

    * `durable`: newest sequence that is on disk and dispatched to live subscriptions. Replays read up to it.
    * `stamped`: newest assigned sequence; its record may not be on disk yet.
    * `newest_shown`: newest sequence that subscriptions with durability `live` received early, before it was
      on disk.
    * `ever_shown`: the same, including sequences of records that the disk has refused. Clients may have
      bookmarks up to it.
    """

    def __init__(self, durable: int) -> None:
        self.durable = self.stamped = self.newest_shown = self.ever_shown = durable
        self.end: LogEnd | None = None
        """Confirmed reads of the end, where other brokers append to this log; None: the log ends with
        `stamped`."""
        self._progress = asyncio.Event()

    def bounds(self, instance: str, oldest: int, removed: Sequence[RemovedInterval] = ()) -> LogBounds:
        """Return the bounds of the log, for bookmarks of its subscribers."""
        return LogBounds(instance, oldest, self.durable, self.newest_shown, self.ever_shown, removed)

    async def confirm(self) -> int | None:
        """Return the newest sequence of the log, or None when it can't be confirmed within a few seconds."""
        return self.durable if self.end is None else await self.end.read()

    def advance(self, durable: int) -> None:
        """Record that everything up to `durable` is on disk and dispatched, and wake waiting replays."""
        self.durable = durable
        self.notify_waiters()

    def notify_waiters(self) -> None:
        """Wake waiting replays so that they check their conditions again."""
        self._progress.set()
        self._progress.clear()

    async def wait_advanced(self) -> None:
        """Wait until more of the log may be read, or a condition has changed."""
        await self._progress.wait()
