"""Reading what arrives: as messages, as batches, or everything that waits at once. What a subscription of one broker and
one of several groups have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterator

from broker_core.batch import Batch
from broker_core.client.messages import Message, ReceivedBatch, batch_messages


class SubscriptionReader(ABC):
    """Iterate it for messages, or `batches()` for record batches."""

    timestamp: bool
    """Whether messages say when they were accepted."""

    def __init__(self) -> None:
        self._begun: deque[Iterator[Message]] = deque()
        """What hasn't been read yet of the batches that `messages` has begun: who stops in the middle of one goes on there."""

    # Where it comes from.

    @abstractmethod
    def poll(self, until_completed: bool = False) -> ReceivedBatch | None:
        """What waits next. None: nothing does now."""

    @abstractmethod
    def is_finished(self, until_completed: bool = False) -> bool:
        """Whether nothing more will come, now that nothing waits. Raises why it can't go on."""

    @abstractmethod
    def add_waiter(self, waiter: asyncio.Future[None]) -> None:
        """Set this when something comes, or nothing will any more."""

    @abstractmethod
    def remove_waiter(self, waiter: asyncio.Future[None]) -> None:
        """Nobody waits for this any more."""

    @abstractmethod
    def on_next_requested(self) -> None:
        """The application asks for the next: with `auto` that acknowledges what it was given before."""

    @abstractmethod
    def on_delivered(self, arrived: ReceivedBatch) -> None:
        """The application has it, and with it everything before: what `bookmark_after` and a plain `ack` speak of."""

    @abstractmethod
    def replay_batches_remaining(self) -> float:
        """Batches of the replay that weren't taken yet; below 0 when later ones were, and infinite while nobody knows."""

    # How it is read.

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def messages(self, *, until_completed: bool = False) -> AsyncIterator[Message]:
        """The messages, one by one; with `until_completed` only those of the replay.

        Who stops and reads on later, by another call too, goes on with the next message.
        """
        begun = self._begun
        while not until_completed or self.replay_batches_remaining() >= 0:
            while begun:
                rest = begun[0]
                for message in rest:
                    yield message
                if begun and begun[0] is rest:  # else somebody who reads too was faster
                    begun.popleft()
            taken = await self._take(until_completed)
            if taken is None:
                return
            self.on_delivered(taken)
            begun.append(batch_messages(*taken, timestamp=self.timestamp))

    async def batches(self, *, until_completed: bool = False) -> AsyncIterator[Batch]:
        """The record batches as they came: nothing is made for single records. What `messages` has begun it alone goes on with."""
        while (taken := await self._take(until_completed)) is not None:
            self.on_delivered(taken)
            yield taken.batch

    async def next_batches(self, until_completed: bool = False) -> list[tuple[Batch, str]]:
        """Everything that waits, with the instance it came from; waits for the first. Empty at the end."""
        many = await self.take_all(until_completed)
        for taken in many:
            self.on_delivered(taken)
        return [(taken.batch, taken.instance) for taken in many]

    async def take_all(self, until_completed: bool = False) -> list[ReceivedBatch]:
        """Everything that waits; waits for the first. Empty at the end. Who gives one of them to the application says `handed`."""
        taken = await self._take(until_completed)
        many: list[ReceivedBatch] = []
        while taken is not None:
            many.append(taken)
            taken = self.poll(until_completed)
        return many

    async def _take(self, until_completed: bool) -> ReceivedBatch | None:
        self.on_next_requested()
        while (arrived := self.poll(until_completed)) is None and not self.is_finished(until_completed):
            # A future for each who waits: a shared one would need a shield, and that a turn of the loop more.
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_waiter(waiter)
            try:
                await waiter
            finally:
                self.remove_waiter(waiter)
        return arrived
