"""The chunks of a drain: what is pulled from a spool at once, read in the reader thread, and when it is its turn.

As with replays (`read_ahead`) a chunk starts small and grows while the client takes everything at once, and the next
one is read while the client takes the one before. When it stops, everything unsent is given back and only references to
it wait in memory (of what no journal keeps, itself), so that clients that have stopped hold next to nothing.

Beside live traffic a drain stands in the line of the replays (`fair_share`), but for as much as has come for its client
meanwhile: so it goes faster than its backlog grows, and ends. A chunk that was read for a faster pace is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from broker_core.delivery.entry import OutboxEntry
from broker_core.delivery.fair_share import LARGEST_BESIDE_LIVE, ChunkSize
from broker_core.delivery.ports import Facilities
from broker_core.delivery.spool.bring_back import load
from broker_core.delivery.spool.entries import RUN_BYTES, SpoolEntry
from broker_core.delivery.spool.spool import Spool

LARGEST_COPIED = 256 * 1024
"""Bytes of a chunk while the spool holds batches that no journal keeps."""


@dataclass(slots=True, eq=False)
class Chunk:
    """What was pulled from the spool together and isn't queued yet. No journaled record of it is before `first`, and none of a
    stream before its `firsts`."""

    entries: Sequence[SpoolEntry]
    first: int
    firsts: Mapping[int, int]
    reading: asyncio.Future[list[OutboxEntry]]
    messages: int
    nbytes: int
    copied_messages: int


class Drain:
    """The chunks of one client's spool, one in flight at a time."""

    def __init__(
        self, facilities: Facilities, spool: Spool, leave_out: Callable[[list[SpoolEntry]], list[SpoolEntry]]
    ) -> None:
        """`leave_out` is given what was pulled; it returns what is still wanted."""
        self._facilities = facilities
        self._share = facilities.share
        self._spool = spool
        self._leave_out = leave_out
        self.chunk: Chunk | None = None
        self.size = ChunkSize(facilities.share)
        self.came_bytes = 0
        """How much more came for the client since it reads, or since it was delivered so much."""
        self._reads = False

    def reads(self, reading: bool) -> None:
        """The client reads again, or has stopped."""
        if reading != self._reads:
            self._reads = reading
            self._share.replays += 1 if reading else -1
            self.came_bytes = 0
            self.size.begin_anew()

    async def turn(self) -> None:
        """Wait until a chunk may be delivered."""
        if self._share.busy and self.size.nbytes > LARGEST_BESIDE_LIVE:
            self.size.nbytes = LARGEST_BESIDE_LIVE
            if (chunk := self._drop()) is not None:
                self._spool.put_back(chunk.entries, chunk.firsts)
        owed = max(self.size.nbytes, RUN_BYTES)
        if self.came_bytes >= owed:
            self.came_bytes -= owed
        else:
            await self._share.mine()

    def start(self) -> None:
        """Pull a chunk and begin to read it, unless one is in flight. JournalError spool_damaged."""
        if self.chunk is not None:
            return
        first, firsts = self._spool.first_sequence, self._spool.firsts()
        # What was copied can't be given back but in memory.
        size = min(self.size.nbytes, LARGEST_COPIED) if self._spool.copied_messages else self.size.nbytes
        entries = self._leave_out(self._spool.pull(size))
        self.chunk = Chunk(
            entries,
            first,
            {entry.stream: firsts[entry.stream] for entry in entries if entry.stream in firsts},
            asyncio.ensure_future(self._read(entries)),
            sum(entry.count for entry in entries),
            sum(entry.nbytes for entry in entries),
            sum(entry.count for entry in entries if entry.batch is not None),
        )

    async def _read(self, entries: Sequence[SpoolEntry]) -> list[OutboxEntry]:
        return await self._facilities.reader.run(load, self._facilities.journal, entries)

    def stop(self) -> Chunk | None:
        """Nothing is wanted, for now or any more. What was in flight."""
        self.reads(False)
        return self._drop()

    def _drop(self) -> Chunk | None:
        chunk, self.chunk = self.chunk, None
        if chunk is not None:
            if chunk.reading.done() and not chunk.reading.cancelled():
                chunk.reading.exception()  # nobody will ask for it any more
            chunk.reading.cancel()
        return chunk
