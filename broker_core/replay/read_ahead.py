"""The next chunks of one replay: how large they are, and the reads that are under way.

A chunk starts small, and grows while the client takes everything at once. What a stopped client's transport holds
keeps the whole chunk it was read with in memory, so a chunk is also never more than a part of what the client has
taken: the kernels take some hundred KiB for a client that reads nothing, and that must not make its chunks large.

For a client that is fast two chunks are asked for ahead of time. The reader thread then goes from one to the next by
itself, and inflates one while the loop hands over the one before; asked for one by one they would take turns, since
the loop keeps the interpreter while it hands over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from broker_core.delivery.ports import InstanceResources
from broker_core.delivery.scheduling import CUT_BEFORE, AdaptiveChunkSize
from broker_core.errors import JournalError
from broker_core.replay.chunks import Chunk, Reader, Way
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.frontier import Frontier
from broker_core.replay.span import Span

CHUNKS_AHEAD = 2
"""Chunks of a fast client that are read, or being read, besides the one that is handed over."""


class ReadAhead:
    """Reads the chunks of one replay in the reader thread, one after the other."""

    def __init__(self, facilities: InstanceResources, frontier: Frontier) -> None:
        self._facilities = facilities
        self._share = facilities.share
        self._frontier = frontier
        self._way: Way | None = None
        self._reading: deque[asyncio.Future[Chunk | None]] = deque()
        self.size = AdaptiveChunkSize(facilities.share)

    def go_on(self, targets: Sequence[ClientSubscription], span: Span, following: int) -> None:
        """Have chunks read ahead, if the client is so fast that it pays. These are about to be given all before `following`."""
        if self.size.pays_ahead:
            while len(self._reading) < CHUNKS_AHEAD:
                self._start(targets, span, following)

    def _start(self, targets: Sequence[ClientSubscription], span: Span, following: int = 0) -> None:
        if self._way is None:
            readers = [Reader(one.subscription, max(one.cursor.next_sequence, following)) for one in targets]
            self._way = Way(self._facilities.journal, readers, span)
        max_bytes = min(self.size.nbytes, self._share.largest)
        cuts = self.size.taken_bytes < CUT_BEFORE
        self._reading.append(
            self._facilities.reader.run(self._way.chunk, self._frontier.durable, max_bytes, cuts)
        )

    async def chunk(self, targets: Sequence[ClientSubscription], span: Span) -> Chunk | None:
        """What was read ahead or, when nothing is being read, the next chunk. None: look where these stand, and ask anew.

        JournalErrors as `read_chunk`.
        """
        if self._share.busy:
            self.stop()  # it was read for a faster pace, in large chunks; nothing is read ahead beside live traffic
        if self._reading:
            return await self._next()
        async with self._share.reads:
            self.stop()
            self._start(targets, span)
            return await self._next()

    async def _next(self) -> Chunk | None:
        # Let go of it: a waiting replay must not keep the chunk it has delivered.
        reading = self._reading.popleft()
        try:
            chunk = await reading
        except JournalError:
            self.stop()
            raise
        if chunk is None:
            self.stop()
        return chunk

    def stop(self) -> None:
        """What is being read isn't wanted any more."""
        for reading in self._reading:
            if reading.done() and not reading.cancelled():
                reading.exception()  # nobody will ask for it any more
            reading.cancel()
        self._reading.clear()
        self._way = None

    def stalled(self) -> None:
        """The client has stopped reading: what was read ahead is given back."""
        self.stop()
        self.size.begin_anew()
