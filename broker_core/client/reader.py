"""Reading interface of subscriptions: messages, batches, or everything that waits.

Subscriptions of one broker and of several groups share it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterator

from broker_core.batch import Batch
from broker_core.client.messages import Message, ReceivedBatch, batch_messages


class SubscriptionReader(ABC):
    """Base class of subscriptions. Iterate it for messages, or `batches()` for record batches."""

    timestamp: bool
    """Whether messages carry the time at which the broker accepted them."""

    def __init__(self) -> None:
        self._started_batches: deque[Iterator[Message]] = deque()
        """Unread messages of batches that `messages` has started.

        A reader that stops in the middle continues there.
        """

    # Source of the batches, implemented by subclasses.

    @abstractmethod
    def poll(self, until_completed: bool = False) -> ReceivedBatch | None:
        """Return the next waiting batch, or None if no batch waits."""

    @abstractmethod
    def is_finished(self, until_completed: bool = False) -> bool:
        """Return whether no more batches will arrive, given that none waits.

        Raises the error that ended the subscription.
        """

    @abstractmethod
    def add_waiter(self, waiter: asyncio.Future[None]) -> None:
        """Register a future to complete when a batch arrives or the subscription ends."""

    @abstractmethod
    def remove_waiter(self, waiter: asyncio.Future[None]) -> None:
        """Remove a future that `add_waiter` registered."""

    @abstractmethod
    def on_next_requested(self) -> None:
        """Called when the application asks for the next batch.

        With `ack="auto"` this acknowledges the previous one.
        """

    @abstractmethod
    def on_delivered(self, arrived: ReceivedBatch) -> None:
        """Called when the application receives a batch.

        `bookmark_after` and `ack` then include it and all earlier ones.
        """

    @abstractmethod
    def replay_batches_remaining(self) -> float:
        """Return the number of batches of the replay that are not taken yet.

        Negative after later batches were taken; infinite while the end of the replay is unknown.
        """

    # Reading.

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def messages(self, *, until_completed: bool = False) -> AsyncIterator[Message]:
        """Iterate over the messages; with `until_completed` only over those of the replay.

        A reader that stops and later reads on, also with another call, continues with the next message.

        Raises:
            SluiceError: Reason why the subscription cannot continue.
        """
        started = self._started_batches
        while not until_completed or self.replay_batches_remaining() >= 0:
            while started:
                remaining = started[0]
                for message in remaining:
                    yield message
                if started and started[0] is remaining:  # else a concurrent reader has removed it
                    started.popleft()
            received = await self._next_batch(until_completed)
            if received is None:
                return
            self.on_delivered(received)
            started.append(batch_messages(*received, timestamp=self.timestamp))

    async def batches(self, *, until_completed: bool = False) -> AsyncIterator[Batch]:
        """Iterate over the record batches as they arrived. Creates no object per record.

        A batch that `messages` has started is left to `messages`.
        """
        while (received := await self._next_batch(until_completed)) is not None:
            self.on_delivered(received)
            yield received.batch

    async def next_batches(self, until_completed: bool = False) -> list[tuple[Batch, str]]:
        """Return all waiting batches, each with the instance that delivered it.

        Waits for the first; empty at the end.
        """
        batches = await self.take_all(until_completed)
        for received in batches:
            self.on_delivered(received)
        return [(received.batch, received.instance) for received in batches]

    async def take_all(self, until_completed: bool = False) -> list[ReceivedBatch]:
        """Return all waiting batches without delivering them. Waits for the first; empty at the end.

        The caller must call `on_delivered` for each batch that it passes to the application.
        """
        received = await self._next_batch(until_completed)
        batches: list[ReceivedBatch] = []
        while received is not None:
            batches.append(received)
            received = self.poll(until_completed)
        return batches

    async def _next_batch(self, until_completed: bool) -> ReceivedBatch | None:
        self.on_next_requested()
        while (arrived := self.poll(until_completed)) is None and not self.is_finished(until_completed):
            # Each waiter gets its own future: a shared one would need a shield, which costs another
            # event-loop iteration.
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_waiter(waiter)
            try:
                await waiter
            finally:
                self.remove_waiter(waiter)
        return arrived
