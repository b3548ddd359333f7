"""The client for programs without asyncio: an AsyncClient on a loop in a thread of its own.

publish() only appends to a line that the loop's thread takes as a whole, so a message doesn't cost a switch of threads;
it waits while MAX_LINE messages stand in line. Everything else asks the loop and waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Self, Unpack

from broker_core.batch import Batch
from broker_core.client.async_client import AsyncClient, Options
from broker_core.client.bodies import MAX_BODY, Body, encode_body, too_large
from broker_core.client.groups_subscription import GroupsSubscription
from broker_core.client.loop_thread import LoopThread
from broker_core.client.message import Arrived, Message, messages_of
from broker_core.client.reconnect import ConnectionLoss
from broker_core.client.subscription import Subscription
from broker_core.errors import SluiceError
from broker_core.protocols.names import check_topic
from broker_core.protocols.replies import Gap, Notice

MAX_LINE = 4_096
"""Messages that can wait in line for the loop's thread."""


class SyncClient:
    """One client of a broker, from any thread. The arguments are those of AsyncClient."""

    def __init__(self, address: str | Sequence[str], name: str, **options: Any) -> None:
        self._set_up(AsyncClient(address, name, **options), LoopThread(name), alone=True)

    @classmethod
    def beside(cls, loop: LoopThread, client: AsyncClient) -> Self:
        """One of several on one loop, which somebody else starts and stops."""
        made = cls.__new__(cls)
        made._set_up(client, loop, alone=False)
        return made

    def _set_up(self, client: AsyncClient, loop: LoopThread, *, alone: bool) -> None:
        self._client = client
        self._loop = loop
        self._alone = alone
        self._line: list[tuple[str, bytes]] = []
        self._change = threading.Condition()
        self._sending = False
        self._closed = False
        self._order = asyncio.Lock()
        self._error: Exception | None = None

    # Life.

    def start(self) -> Self:
        """Connect and log on. Raises the reason for failing."""
        self._loop.start(self._client.start())
        return self

    def close(self) -> None:
        """Send what stands in line and disconnect. Call `flush()` first to be sure that it has arrived."""
        if self._alone:
            self._loop.stop(self.wind_up())
        elif self._loop.runs:
            self._loop.ask(self.wind_up())

    async def wind_up(self) -> None:
        """On the loop: send what stands in line and disconnect."""
        try:
            await self._send_line()
            await self._client.close()
        finally:
            with self._change:  # whoever waits for room in the line waits for nothing now
                self._closed = True
                self._change.notify_all()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._client.name

    @property
    def instance(self) -> str:
        return self._client.instance

    @property
    def connected(self) -> bool:
        """Whether it is logged on now."""
        return self._client.connected

    @property
    def connections(self) -> int:
        """How many times it has logged on."""
        return self._client.connections

    @property
    def last_loss(self) -> ConnectionLoss | None:
        """Newest lost connection or failed attempt to connect, with its reason."""
        return self._client.last_loss

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes in the publish store; what still stands in line isn't counted."""
        return self._client.unacknowledged_bytes

    @property
    def notices(self) -> list[Notice]:
        """Notices of the broker's policies to this client, the newest 100."""
        return list(self._client.notices)

    # Publishing.

    def publish(self, topic: str, body: Body) -> None:
        """Publish one message: bytes as they are, text as UTF-8, anything else as JSON."""
        if type(body) is not bytes:
            body = encode_body(body)
        if len(body) > MAX_BODY:
            raise too_large(len(body))
        check_topic(topic)
        with self._change:
            while len(self._line) >= MAX_LINE and self._error is None and not self._closed:
                self._keep_sending()
                self._change.wait()
            self._raise_error()
            self._keep_sending()
            self._line.append((topic, body))

    def _keep_sending(self) -> None:
        """Have the loop's thread take the line, unless it does already. Under the lock, so before it looks what stands there is in it."""
        if self._closed:
            raise self._loop.closed()
        if not self._sending:
            self._loop.begin(self._send_line())
            self._sending = True

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    async def _send_line(self) -> None:
        async with self._order:  # a second one, as of flush(), must not overtake the first
            while line := self._take_line():
                for at, (topic, body) in enumerate(line, start=1):
                    try:
                        await self._client.publish(topic, body)
                    except (SluiceError, OSError) as error:
                        self._stopped_at(error, line[at:])
                        return

    def _stopped_at(self, error: Exception, rest: list[tuple[str, bytes]]) -> None:
        """The next publish() or flush() raises it, and those after it go on with the rest."""
        with self._change:
            self._line[:0] = rest
            self._error, self._sending = error, False
            self._change.notify_all()

    def _take_line(self) -> list[tuple[str, bytes]]:
        with self._change:
            line, self._line = self._line, []
            self._sending = bool(line)
            self._change.notify_all()
        return line

    def publish_many(self, topic: str, bodies: Sequence[Body]) -> None:
        """Publish messages of one topic as one batch."""
        self._loop.ask(self._after_line(lambda: self._client.publish_many(topic, bodies)))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything published is acknowledged. Raises the first error, or TimeoutError after `timeout` seconds."""
        self._loop.ask(self.flushed(), timeout)

    async def flushed(self) -> None:
        """On the loop: everything published so far is acknowledged."""
        await self._after_line(self._client.flush)

    async def _after_line(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # Shielded: a flush() whose time is over takes nothing out of the line with it.
        await asyncio.shield(self._send_line())
        self._raise_error()
        await work()

    # Subscribing.

    def subscribe(
        self,
        topic: str,
        filter: str | None = None,
        bookmark: str | None = None,
        id: str | None = None,
        **options: Unpack[Options],
    ) -> SyncSubscription:
        """Subscribe; see AsyncClient.subscribe."""
        subscription = self._loop.ask(self._client.subscribe(topic, filter, bookmark, id, **options))
        return SyncSubscription(self._loop, subscription)

    def pause(self, subscriptions: Sequence[SyncSubscription]) -> None:
        """Pause several in one command; see AsyncClient.pause."""
        self._loop.ask(self._client.pause(_parts(subscriptions)))

    def resume(self, subscriptions: Sequence[SyncSubscription]) -> None:
        """Resume several in one command; see AsyncClient.resume."""
        self._loop.ask(self._client.resume(_parts(subscriptions)))

    def set_rate(
        self, subscriptions: Sequence[SyncSubscription], rate: str | None, max_gap: str | None = None
    ) -> None:
        """Another rate of several in one command; see AsyncClient.set_rate."""
        self._loop.ask(self._client.set_rate(_parts(subscriptions), rate, max_gap))


class SyncSubscription:
    """A subscription of a SyncClient or of SyncGroups. Iterate it for messages, or `batches()` for record batches."""

    def __init__(self, loop: LoopThread, subscription: Subscription | GroupsSubscription) -> None:
        self._loop = loop
        self._subscription = subscription
        self._arrived: deque[Arrived] = deque()
        """Taken from the loop's thread together."""
        self._reading: deque[Iterator[Message]] = deque()
        """As `Reading` has it."""

    @property
    def id(self) -> str:
        return self._subscription.id

    @property
    def gaps(self) -> list[Gap]:
        """Intervals that the log no longer held."""
        return list(self._subscription.gaps)

    @property
    def completed(self) -> bool:
        """Whether the replay has caught up."""
        return self._subscription.completed.is_set()

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self, *, until_completed: bool = False) -> Iterator[Message]:
        """The messages, one by one; with `until_completed` only those of the replay.

        Reading on after a stop, also with another call, continues with the next message.
        """
        reading, timestamp = self._reading, self._subscription.timestamp
        while not until_completed or self._left_of_replay() >= 0:
            while reading:
                rest = reading[0]
                yield from rest
                if reading and reading[0] is rest:
                    reading.popleft()
            arrived = self._take(until_completed)
            if arrived is None:
                return
            reading.append(messages_of(*arrived, timestamp=timestamp))

    def batches(self, *, until_completed: bool = False) -> Iterator[Batch]:
        """The record batches as they arrived. A batch that `messages` has begun is left to it."""
        while (arrived := self._take(until_completed)) is not None:
            yield arrived.batch

    def _take(self, until_completed: bool) -> Arrived | None:
        if not self._arrived:
            self._arrived += self._loop.ask(self._subscription.take_all(until_completed))
        if not self._arrived or (until_completed and self._left_of_replay() <= 0):
            return None
        arrived = self._arrived.popleft()
        self._subscription.handed(arrived)
        return arrived

    def _left_of_replay(self) -> float:
        return self._subscription.left_of_replay() + len(self._arrived)

    def ack(self, item: Message | None = None) -> None:
        """Acknowledge a message, or everything of the batch that was read last; see Subscription.ack."""
        self._loop.tell(self._subscription.acknowledging(item))

    def done(self, item: Message | Batch) -> None:
        """The application is done with it; see Subscription.done. Call it from one thread only."""
        # Without a change of threads: the loop's thread only appends to what this reads from the front.
        self._subscription.done(item)

    def bookmark_after(self, item: Message | Batch) -> str | None:
        """The bookmark to store with a result; see Subscription.bookmark_after."""
        return self._subscription.bookmark_after(item)

    def pause(self) -> None:
        """Deliver nothing until `resume()`. What is on its way still comes. ClientError not_steerable."""
        self._loop.ask(self._subscription.pause())

    def resume(self) -> None:
        """Go on where it was paused."""
        self._loop.ask(self._subscription.resume())

    def set_rate(self, rate: str | None, max_gap: str | None = None) -> None:
        """Another rate ("1000", "500KB", "2X"), or none, from now on. ClientError bad_rate."""
        self._loop.ask(self._subscription.set_rate(rate, max_gap))

    def close(self, *, delete: bool = False) -> None:
        """Unsubscribe. Iterations end after what waits. `delete`: a durable one isn't kept either."""
        self._loop.ask(self._subscription.close(delete=delete))


def _parts(subscriptions: Sequence[SyncSubscription]) -> list[Subscription]:
    return [part for one in subscriptions for part in one._subscription.parts]
