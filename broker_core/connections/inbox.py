"""Inbox of one connection: input that was read and not executed yet.

It is executed in order, within a time budget.

A read brings up to 256 KiB, which may be thousands of commands. Executing all of them in one iteration would
delay all other clients. So a connection has a time budget per event-loop iteration. The remaining input is
executed in later iterations, after that of other clients, and the broker reads from the client only when none
remains. The remaining input counts in the instance's input limits (`admission`), because a logon may be
checked for seconds, and a disk may be slow.

After the logon, this class alone decides whether a client is read from, because there are several reasons to
stop. Before it, a TCP connection is also read in turn with all others (`admission.PreLogonReadQueue`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from operator import length_hint
from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker_core.connections.admission import InputBufferUsage
from broker_core.delivery.scheduling import ITERATION_BUDGET_NS, WorkScheduler
from broker_core.errors import ClientError
from broker_core.protocols.native import NativeFrame

if TYPE_CHECKING:
    from broker_core.clock import Clock
    from broker_core.delivery.sink import Sink


class ProtocolAction(Protocol):
    """Input of another protocol than the native one, as an action to execute."""

    @property
    def nbytes(self) -> int:
        """Approximate memory of the input, bytes."""

    def execute(self) -> None:
        """Execute the action.

        Raises:
            ClientError: the reason for a refusal.
        """


ITEM_BYTES = 256
"""Approximate memory of an item besides its bytes. A thousand tiny frames use much more than their bytes."""

Item = NativeFrame | str | ClientError | ProtocolAction
"""One input: a frame, a command as text, a fatal read error, or an action of another protocol."""


class InputPauseReason(Enum):
    """Reason why a client's input is not executed for now."""

    LOGON = "its logon is being checked"
    JOURNAL = "the disk is slower than the publishers"
    PENDING_BATCHES = "too many of the client's batches aren't on disk yet"
    QUOTA = "it publishes faster than its quota allows"
    END = "its subscription begins at the end of the log, which is being read"
    SUBSCRIBE = "its subscription is being prepared, and later commands must follow it"
    DELETION = "the deletion of its durable subscription isn't on disk yet"
    ORDER = "a subscription must begin or end, or a refusal be sent, behind messages that aren't on disk yet"


def estimate_bytes(items: Iterable[Item]) -> int:
    """Return the approximate memory of some items, bytes."""
    nbytes = 0
    for item in items:
        nbytes += ITEM_BYTES
        if isinstance(item, NativeFrame):
            nbytes += len(item.payload)
        elif isinstance(item, str):
            nbytes += len(item)
        elif not isinstance(item, ClientError):
            nbytes += item.nbytes
    return nbytes


class _ReadChunk(NamedTuple):
    """Input of one read.

    Items may be parsed one by one as they are executed, because parsing takes time too.

    `parsed`: the items if they were parsed before; they stay in memory until the last one is executed. The
    parser counts the bytes of items that are not parsed yet.
    """

    items: Iterator[Item]
    parsed: Collection[Item] = ()


class Inbox:
    """Inbox of one connection.

    Args:
        sink: Transport whose reading is paused and resumed.
        execute: Called for each item. It must not raise.
        clock: Source of the time that the budget counts.
        turns: Scheduler of the input that exceeds the budget.
        usage: Counter of the waiting bytes.
    """

    def __init__(
        self,
        sink: Sink,
        execute: Callable[[Item], None],
        clock: Clock,
        scheduler: WorkScheduler,
        usage: InputBufferUsage,
    ) -> None:
        self._usage = usage
        self._sink = sink
        self._execute = execute
        self._clock = clock
        self._scheduler = scheduler
        self._chunks: deque[_ReadChunk] = deque()
        self._next: Item | None = None
        """First item, if it was checked and couldn't be executed."""
        self._pause_reasons: dict[InputPauseReason, Callable[[Item], bool] | None] = {}
        """Active holds, each with a test for items that may be executed in spite of it."""
        self._reading = True
        self._is_executing = False
        self._scheduled = False
        self._spent_ns = 0
        """Time used of the budget, up to `_stopped_at`.

        Time without execution restores it, because others ran meanwhile.
        """
        self._stopped_at = 0
        self._on_end: Callable[[], None] | None = None
        self.on_idle: Callable[[], None] | None = None
        """Called whenever the inbox becomes idle; None for a peer that may send more."""

    @property
    def is_idle(self) -> bool:
        """Whether all input was executed, and no hold waits for the result of a command."""
        return not self._chunks and not self._pause_reasons

    @property
    def is_reading(self) -> bool:
        """Whether the broker reads from the client now."""
        return self._reading

    def put(self, items: Iterable[Item]) -> None:
        """Add input, and execute it within the budget; the rest is executed in later iterations.

        `items` may be parsed lazily.

        Raises:
            ClientError: input_full, when the instance has no memory for the rest.
        """
        self._chunks.append(_ReadChunk(iter(items), items if isinstance(items, Collection) else ()))
        self._hand_over()
        if self._chunks:
            self._usage.set_bytes(sum(estimate_bytes(read.parsed) for read in self._chunks))

    def discard_all(self) -> None:
        """Discard the waiting input, because its sender was not authenticated."""
        self._chunks.clear()
        self._next = None
        self._usage.set_bytes(0)

    def pause(self, reason: InputPauseReason, but: Callable[[Item], bool] | None = None) -> None:
        """Stop executing input until `resume`. `but`: test for items that may be executed nevertheless."""
        self._pause_reasons[reason] = but
        if not self._is_executing:  # otherwise it is decided when nothing more can be executed
            self._update_reading()

    def resume(self, reason: InputPauseReason) -> None:
        if reason not in self._pause_reasons:
            return
        del self._pause_reasons[reason]
        self._hand_over()

    def end(self, ended: Callable[[], None]) -> None:
        """End the input.

        `ended` is called when all of it has been executed, possibly in a later iteration.

        Input behind a logon that is still being checked is discarded, because its sender is unknown.
        """
        if InputPauseReason.LOGON in self._pause_reasons:
            self.discard_all()
        self._pause_reasons.clear()
        self._on_end = ended
        self._hand_over()

    def _peek(self) -> Item | None:
        """Return the next item without removing it; None if there is none."""
        while self._next is None and self._chunks:
            self._next = next(self._chunks[0].items, None)
            if self._next is None:
                self._chunks.popleft()
        return self._next

    @property
    def _may_execute(self) -> bool:
        """Whether an item may be executable. Without holds, nothing is parsed to find out."""
        while self._next is None and self._chunks and not length_hint(self._chunks[0].items, 1):
            self._chunks.popleft()
        if not self._chunks or not self._pause_reasons:
            return bool(self._chunks)
        buts = [but for but in self._pause_reasons.values() if but is not None]
        if len(buts) < len(self._pause_reasons):
            return False
        found = self._peek()
        return found is not None and all(but(found) for but in buts)

    def _hand_over(self) -> None:
        """Execute items within the time budget, then schedule the rest and pause or resume reading."""
        if self._is_executing or self._scheduled:
            return  # called during execution, or scheduled for a later iteration
        self._is_executing = True
        began = now = self._clock.monotonic_ns()
        spent = max(self._spent_ns - (began - self._stopped_at), 0)
        try:
            while self._may_execute and spent + now - began < ITERATION_BUDGET_NS:
                item = self._peek()
                if item is not None:
                    self._next = None
                    self._execute(item)
                now = self._clock.monotonic_ns()
        finally:
            self._is_executing = False
        self._spent_ns, self._stopped_at = spent + now - began, now
        if not self._chunks:
            self._usage.set_bytes(0)
        if self._may_execute:
            self._scheduled = True
            self._scheduler.add_recurring(self._execute_in_iteration)
        self._update_reading()
        if self._on_end is not None and not self._chunks:
            ended, self._on_end = self._on_end, None
            self._scheduler.call_within_budget(ended)
        elif self.on_idle is not None and self.is_idle:
            self.on_idle()

    def _execute_in_iteration(self) -> int:
        self._scheduled = False
        self._spent_ns = 0
        self._hand_over()
        return self._spent_ns

    def _update_reading(self) -> None:
        """Read from the client only if no input waits and no hold forbids it."""
        reading = not self._chunks and all(self._pause_reasons.values())
        if reading != self._reading:
            self._reading = reading
            if reading:
                self._sink.resume_reading()
            else:
                self._sink.pause_reading()
