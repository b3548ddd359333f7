"""What a client has sent and its connection hasn't taken: handed over in order, a part in each turn of the loop.

A read brings up to 256 KiB, which may be thousands of commands. Carried out in one go they would hold everybody else's messages
up for as long. So a connection has a budget of time a turn; what is left is taken in the next, after all others have had theirs,
and the client isn't read from until nothing is left. What is left counts in the instance's budgets of input (`anteroom`): a logon
may be checked for seconds, and a disk be slow. Whether a client is read from is decided here alone, because
there is more than one reason not to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from operator import length_hint
from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker_core.connections.admission import InputBufferUsage
from broker_core.delivery.scheduling import TURN_NS, WorkScheduler
from broker_core.errors import ClientError
from broker_core.protocols.native import NativeFrame

if TYPE_CHECKING:
    from broker_core.clock import Clock
    from broker_core.delivery.sink import Sink


class ProtocolAction(Protocol):
    """What was read in a protocol that makes its own of it."""

    @property
    def nbytes(self) -> int:
        """What it holds of what was read, about."""

    def execute(self) -> None:
        """Do it. ClientErrors say why not."""


ITEM_BYTES = 256
"""What an item takes besides the bytes that were read: a thousand tiny frames are much more than their bytes."""

Item = NativeFrame | str | ClientError | ProtocolAction
"""A frame, a command as text, why nothing more can be read, or a deed of another protocol."""


class InputHold(Enum):
    """Why nothing is taken from a client for now."""

    LOGON = "its logon is being checked"
    JOURNAL = "the disk is behind what was published"
    OWN = "too many of its own batches aren't on the disk yet"
    QUOTA = "it publishes faster than its quota allows"
    END = "its subscription begins at the end of the log, which is being read"
    SUBSCRIBE = "its subscription is being prepared, and what follows is meant to come after it"


def estimate_bytes(items: Iterable[Item]) -> int:
    """What they take of memory, about."""
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
    """What one read brought. Made into items as they are taken, which costs time too, or `made` before: all stay until the last is
    taken. What isn't made yet is counted by whoever makes it."""

    items: Iterator[Item]
    made: Collection[Item] = ()


class Inbox:
    """One connection's. `take` is called for each item and may raise nothing. `held` is told what waits here."""

    def __init__(
        self,
        sink: Sink,
        take: Callable[[Item], None],
        clock: Clock,
        turns: WorkScheduler,
        held: InputBufferUsage,
    ) -> None:
        self._held = held
        self._sink = sink
        self._take = take
        self._clock = clock
        self._turns = turns
        self._coming: deque[_ReadChunk] = deque()
        self._next: Item | None = None
        """The first of them, when it was looked at and couldn't be taken."""
        self._holds: dict[InputHold, Callable[[Item], bool] | None] = {}
        """With what may be taken all the same."""
        self._reading = True
        self._taking = False
        self._scheduled = False
        self._spent_ns = 0
        """Of the budget, up to `_stopped_at`. Time in which nothing is taken gives it back: then others have had their turn."""
        self._stopped_at = 0
        self._ended: Callable[[], None] | None = None

    @property
    def reading(self) -> bool:
        """Whether its client is read from now."""
        return self._reading

    def put(self, items: Iterable[Item]) -> None:
        """Take what was read: now what the budget allows, the rest in later turns. Items may be made as they are asked for.
        ClientError input_full when the instance has no room for what waits."""
        self._coming.append(_ReadChunk(iter(items), items if isinstance(items, Collection) else ()))
        self._hand_over()
        if self._coming:
            self._held.set_bytes(sum(estimate_bytes(read.made) for read in self._coming))

    def discard_all(self) -> None:
        """What waits is from nobody, and won't be taken."""
        self._coming.clear()
        self._next = None
        self._held.set_bytes(0)

    def pause(self, why: InputHold, but: Callable[[Item], bool] | None = None) -> None:
        """Take nothing more, also in this turn, until it is released; `but` says of what comes next that it may be taken."""
        self._holds[why] = but
        if not self._taking:  # else it is settled when nothing more can be taken
            self._settle_reading()

    def resume(self, why: InputHold) -> None:
        if why not in self._holds:
            return
        del self._holds[why]
        self._hand_over()

    def end(self, ended: Callable[[], None]) -> None:
        """Nothing more will come: `ended` is called when everything has been taken, at the latest in later turns.

        What came behind a logon that is still being checked is from nobody, and forgotten.
        """
        if InputHold.LOGON in self._holds:
            self.discard_all()
        self._holds.clear()
        self._ended = ended
        self._hand_over()

    def _look(self) -> Item | None:
        """What comes next; it stays."""
        while self._next is None and self._coming:
            self._next = next(self._coming[0].items, None)
            if self._next is None:
                self._coming.popleft()
        return self._next

    @property
    def _may_take(self) -> bool:
        """Whether there may be something to be taken. Without holds nothing is made to find that out."""
        while self._next is None and self._coming and not length_hint(self._coming[0].items, 1):
            self._coming.popleft()
        if not self._coming or not self._holds:
            return bool(self._coming)
        buts = [but for but in self._holds.values() if but is not None]
        if len(buts) < len(self._holds):
            return False
        found = self._look()
        return found is not None and all(but(found) for but in buts)

    def _hand_over(self) -> None:
        if self._taking or self._scheduled:
            return  # called by what is being taken, or it goes on in the next turn
        self._taking = True
        began = now = self._clock.monotonic_ns()
        spent = max(self._spent_ns - (began - self._stopped_at), 0)
        try:
            while self._may_take and spent + now - began < TURN_NS:
                item = self._look()
                if item is not None:
                    self._next = None
                    self._take(item)
                now = self._clock.monotonic_ns()
        finally:
            self._taking = False
        self._spent_ns, self._stopped_at = spent + now - began, now
        if not self._coming:
            self._held.set_bytes(0)
        if self._may_take:
            self._scheduled = True
            self._turns.add_recurring(self._next_turn)
        self._settle_reading()
        if self._ended is not None and not self._coming:
            ended, self._ended = self._ended, None
            self._turns.call_within_budget(ended)

    def _next_turn(self) -> int:
        self._scheduled = False
        self._spent_ns = 0
        self._hand_over()
        return self._spent_ns

    def _settle_reading(self) -> None:
        reading = not self._coming and all(self._holds.values())
        if reading != self._reading:
            self._reading = reading
            if reading:
                self._sink.resume_reading()
            else:
                self._sink.pause_reading()
