"""What waits here on its way through the group's log: gathered, then in an entry, until that has been applied here or was given up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple

from broker_core.batch import Batch
from broker_core.errors import ClientError
from broker_core.group.order import MAX_BATCHES, batches_of, damaged_entry
from broker_core.group.packing import packed
from broker_core.group.ports import ENTRY_BYTES, Entry
from broker_core.journal.commit_log import PENDING_HIGH_BYTES, Owner, PendingBatch


@dataclass(slots=True)
class Outgoing(Generic[Owner]):
    """Batches and confirmed reads of the log's end that one entry carries. With reads alone it is empty."""

    number: int
    since: float
    nbytes: int = 0
    content: bytes = b""
    """As it goes to the engine."""
    batches: list[PendingBatch[Owner]] = field(default_factory=list)
    asking: list[asyncio.Future[int | None]] = field(default_factory=list)


def batches_in(entry: Entry, own: Outgoing[Owner] | None) -> list[Batch]:
    """What an entry holds. What this process sent, and came back as it was, was checked when its publisher sent it. OperatorError
    engine_damaged."""
    if own is not None and entry.content == own.content:
        return [pending.batch for pending in own.batches]
    try:
        return list(batches_of(entry))
    except ClientError as problem:
        raise damaged_entry(entry, problem) from None


class GivenUp(NamedTuple, Generic[Owner]):
    """What waited: nothing here hears of it any more."""

    batches: list[PendingBatch[Owner]]
    nbytes: int


class Waiting(Generic[Owner]):
    """Batches and questions in the order in which they came, by the entry that carries them. Moments are seconds."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        """Something may have gathered."""
        self._number = 0
        self._gathered: list[PendingBatch[Owner]] = []
        self._gathered_since = 0.0
        self._asking: list[asyncio.Future[int | None]] = []
        self._sent: dict[int, Outgoing[Owner]] = {}
        """Under way or committed, and not applied here."""
        self._bytes = 0
        self._appended = self._settled = 0
        self._barriers: list[tuple[int, asyncio.Future[None]]] = []
        self._room = asyncio.Event()
        self._room.set()

    @property
    def full(self) -> bool:
        """Whether publishers should wait."""
        return self._bytes > PENDING_HIGH_BYTES

    async def room(self) -> None:
        """Wait until it isn't full."""
        await self._room.wait()

    def add(self, batches: Sequence[PendingBatch[Owner]], now: float) -> None:
        """Behind everything that has gathered."""
        if not self._gathered:
            self._gathered_since = now
        self._gathered += batches
        self._appended += len(batches)
        self._bytes += sum(pending.batch.nbytes for pending in batches)
        if self.full:
            self._room.clear()
        self.wanted.set()

    def ask(self) -> asyncio.Future[int | None]:
        """Begin a confirmed read of the log's end.

        Its result is the newest record here, once everything that is in the log by now has been applied. It is None
        when the read was given up.
        """
        reached: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._asking.append(reached)
        self.wanted.set()
        return reached

    async def barrier(self) -> None:
        """Wait until all that was added before is settled."""
        if self._settled < self._appended:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._barriers.append((self._appended, reached))
            await reached

    def gather(self, now: float) -> Outgoing[Owner] | None:
        """The next entry: what there is, up to the size that is best."""
        if not self._gathered and not self._asking:
            return None
        nbytes = count = 0
        for pending in self._gathered[:MAX_BATCHES]:
            if nbytes + pending.batch.nbytes > ENTRY_BYTES and count:
                break
            nbytes += pending.batch.nbytes
            count += 1
        batches = self._gathered[:count]
        del self._gathered[:count]
        content = b"".join(pending.batch.buf for pending in batches)
        self._number += 1
        since = self._gathered_since if count else now
        made = Outgoing(self._number, since, nbytes, packed(content), batches, self._asking)
        self._asking = []
        self._sent[made.number] = made
        return made

    def sent(self, number: int) -> Outgoing[Owner] | None:
        """What went into an entry, if somebody still waits for it."""
        return self._sent.get(number)

    def take(self, outgoing: Outgoing[Owner]) -> None:
        """It has come back, and is being applied."""
        del self._sent[outgoing.number]

    def give_back(self, reached: Sequence[Outgoing[Owner]]) -> None:
        """What was taken couldn't be applied."""
        for own in reached:
            self._sent[own.number] = own

    def done(self, own: Outgoing[Owner], upto: int) -> None:
        """Settle an entry that is applied. `upto` is the newest record of the journal behind it."""
        _answer(own.asking, upto)
        self.settle(len(own.batches), own.nbytes)

    def since(self) -> float | None:
        """When the oldest batch that waits began to; None when none does. Forgets questions that nobody waits for any more."""
        self._asking = [one for one in self._asking if not one.done()]
        found = [one.since for one in self._sent.values() if one.batches]
        if self._gathered:
            found.append(self._gathered_since)
        return min(found, default=None)

    def give_up(self) -> GivenUp[Owner]:
        """Take out everything that waits; reads of the end fail. The caller settles it when owners were told."""
        sent, self._sent = list(self._sent.values()), {}
        gathered, self._gathered = self._gathered, []
        asking, self._asking = self._asking, []
        for own in sent:
            _answer(own.asking, None)
        _answer(asking, None)
        batches = [one for own in sent for one in own.batches] + gathered
        for pending in batches:
            pending.failed = True
        nbytes = sum(own.nbytes for own in sent) + sum(one.batch.nbytes for one in gathered)
        return GivenUp(batches, nbytes)

    def settle(self, number: int, nbytes: int) -> None:
        """So many batches wait no more."""
        self._bytes -= nbytes
        self._settled += number
        if not self.full:
            self._room.set()
        while self._barriers and self._barriers[0][0] <= self._settled:
            _, reached = self._barriers.pop(0)
            if not reached.done():
                reached.set_result(None)


def _answer(asking: Sequence[asyncio.Future[int | None]], upto: int | None) -> None:
    for one in asking:
        if not one.done():
            one.set_result(upto)
