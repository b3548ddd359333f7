"""The next chunk of one replay: how large it is, and the read that is under way.

A chunk starts small, and grows while the client takes everything at once. What a stopped client's transport holds
keeps the whole chunk it was read with in memory, so a chunk is also never more than a part of what the client has
taken: the kernels take some hundred KiB for a client that reads nothing, and that must not make its chunks large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker_core.runtime.replay_reader import Chunk, Reader, read_chunk
from broker_core.runtime.turns import FIRST_CHUNK
from broker_core.subscriptions.span import Span

if TYPE_CHECKING:
    from broker_core.runtime.client_subscription import ClientSubscription
    from broker_core.runtime.host import Host


class ReadAhead:
    """Reads the chunks of one replay in the reader thread, one at a time."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._reading: asyncio.Future[Chunk] | None = None
        self._chunk_bytes = FIRST_CHUNK
        self._taken_bytes = 0

    @property
    def pays(self) -> bool:
        """Whether the client is so fast that its next chunk is better read while it takes the one before."""
        return self._chunk_bytes > FIRST_CHUNK

    def start(self, targets: Sequence[ClientSubscription], span: Span) -> None:
        """Begin to read from where these stand."""
        host, readers = self._host, [Reader(target.subscription, target.next_sequence) for target in targets]
        self._reading = asyncio.ensure_future(host.in_reader_thread(
            read_chunk, host.journal, readers, span, host.dispatched_sequence, self._chunk_bytes,
        ))

    async def chunk(self, targets: Sequence[ClientSubscription], span: Span) -> Chunk:
        """What was read ahead or, when nothing is being read, the next chunk. JournalErrors as `read_chunk`."""
        if self._reading is not None:
            return await self._read()
        async with self._host.turns.reads:
            self.start(targets, span)
            return await self._read()

    async def _read(self) -> Chunk:
        assert self._reading is not None
        # Let go of it: a waiting replay must not keep the chunk it has delivered.
        reading, self._reading = self._reading, None
        return await reading

    def stop(self) -> None:
        """What is being read isn't wanted any more."""
        if self._reading is not None:
            if self._reading.done() and not self._reading.cancelled():
                self._reading.exception()  # nobody will ask for it any more
            self._reading.cancel()
            self._reading = None

    def stalled(self) -> None:
        """The client has stopped reading: what was read ahead is given back."""
        self.stop()
        self._chunk_bytes, self._taken_bytes = FIRST_CHUNK, 0

    def grow(self) -> None:
        """The client took a chunk at once."""
        self._taken_bytes += self._chunk_bytes
        self._chunk_bytes = self._host.turns.grown(self._chunk_bytes, self._taken_bytes)
