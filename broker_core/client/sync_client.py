"""An event loop on a thread of its own, for programs that have none.

The client for programs without asyncio: an AsyncClient on a loop in a thread of its own.

publish() returns when the publish store has the message. With `buffered` it only appends to a line that the
loop's thread takes as a whole, so a message doesn't cost a switch of threads; it waits while MAX_LINE
messages stand in line. Everything else asks the loop and waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Self, TypeVar, Unpack

from broker_core.batch import Batch
from broker_core.client.async_client import AsyncClient, SubscribeOptions
from broker_core.client.connector import ConnectionLoss
from broker_core.client.groups_subscription import GroupsSubscription
from broker_core.client.messages import (
    MAX_BODY,
    Body,
    Message,
    ReceivedBatch,
    batch_messages,
    encode_body,
    message_too_large_error,
)
from broker_core.client.subscription import Subscription
from broker_core.client.time_limits import within
from broker_core.client.unsent import Unsent, closing_notes, is_interruption
from broker_core.errors import OperatorError, SluiceError
from broker_core.protocols.names import check_topic
from broker_core.protocols.replies import DecisionNotice, GapNotice

T = TypeVar("T")


class LoopThread:
    """`name` is the client's whose loop it is. From any thread but its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = 0
        """Calls of `stop` whose last work isn't done."""
        self._lock = threading.Lock()
        """Nothing is handed to a loop that was told to stop: nobody would answer it."""

    @property
    def is_running(self) -> bool:
        """Whether it is started, and not stopped."""
        return self._loop is not None

    @property
    def is_current(self) -> bool:
        """Whether the caller is in a callback on this very thread."""
        return self._thread is threading.current_thread()

    def start(self, first: Coroutine[Any, Any, object]) -> None:
        """Begin, and wait until the first work is done. When that fails nothing runs, and why is raised. OperatorError client_started."""
        if self.is_running:
            first.close()
            raise OperatorError(
                "client_started", f"Client {self._name} was started before.", "Make a new client."
            )
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name=f"client {self._name}", daemon=True
        )
        self._thread.start()
        ready.wait()
        try:
            self.call(first)
        except BaseException:
            self._stop()
            raise

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(ready.set)
            self._loop.run_forever()

    def stop(self, last: Coroutine[Any, Any, object], timeout: float | None = None) -> None:
        """End it after this last work, and wait until its thread has ended. Nothing is done when it doesn't
        run. Of several calls at the same time the last one ends it.

        Raises what the work raises, or TimeoutError when a callback of the application holds the thread for
        longer than `timeout` seconds; the thread then ends when the callback returns.
        """
        with self._lock:
            if self._loop is None:
                last.close()
                return
            self._stopping += 1
        held = False
        try:
            self.call(last, timeout)
        except TimeoutError:
            held = True
            raise TimeoutError(f"Client {self._name} didn't close within {timeout:g} s.") from None
        finally:
            with self._lock:
                self._stopping -= 1
                ends = self._stopping == 0
            if ends:
                self._stop(join=not held)

    def _stop(self, *, join: bool = True) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        thread, self._thread = self._thread, None
        if thread is not None and join:
            thread.join()

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """What the work returns or raises; TimeoutError after so many seconds. OperatorError client_closed,
        callback_would_wait."""
        try:
            self.refuse_waiting()
        except OperatorError:
            work.close()
            raise
        future = self.submit(work)
        try:
            return future.result(timeout)
        except CancelledError:
            if self.is_running:
                raise
            raise self.closed_error() from None
        except TimeoutError as error:
            future.cancel()
            if error.args or timeout is None:  # it is the work's own
                raise
            raise TimeoutError(f"Client {self._name} had no answer within {timeout:g} s.") from None
        except BaseException:
            future.cancel()
            raise

    def refuse_waiting(self) -> None:
        """Raise OperatorError callback_would_wait in a callback on this thread, where a wait never ends."""
        if self.is_current:
            raise OperatorError(
                "callback_would_wait",
                f"Client {self._name} was asked to wait in one of its own callbacks, which would never end.",
                "Do it in another thread.",
            )

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Have work done, and don't wait for it. OperatorError client_closed."""
        with self._lock:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise self.closed_error()

    def call_soon(self, what: Callable[[], object]) -> None:
        """Have it done on the loop, and don't wait. OperatorError client_closed."""
        with self._lock:
            if self._loop is None:
                raise self.closed_error()
            self._loop.call_soon_threadsafe(what)

    def closed_error(self) -> OperatorError:
        """What is raised where it doesn't run."""
        return OperatorError(
            "client_closed", f"Client {self._name} isn't started or is closed.", "Start it first."
        )


MAX_LINE = 4_096
"""Messages that can wait in line for the loop's thread."""
STUCK_S = 1.0
"""How much longer than its timeout `close()` waits for a loop that a callback of the application holds up."""


class SyncClient:
    """One client of a broker, from any thread. The arguments are those of AsyncClient, and `buffered`."""

    def __init__(
        self, address: str | Sequence[str], name: str, *, buffered: bool = False, **options: Any
    ) -> None:
        """`buffered`: publish() returns before the publish store has the message, some thirty times as fast.
        A process that is killed loses up to MAX_LINE messages that were published; `flush()` says that the
        broker has them."""
        self._set_up(AsyncClient(address, name, **options), LoopThread(name), alone=True, buffered=buffered)

    @classmethod
    def share_loop(cls, loop: LoopThread, client: AsyncClient, *, buffered: bool) -> Self:
        """One of several on one loop, which somebody else starts and stops."""
        made = cls.__new__(cls)
        made._set_up(client, loop, alone=False, buffered=buffered)
        return made

    def _set_up(self, client: AsyncClient, loop: LoopThread, *, alone: bool, buffered: bool) -> None:
        self._client = client
        self._loop = loop
        self._alone = alone
        self._buffered = buffered
        self._taken: deque[tuple[str, bytes]] = deque()
        """Messages that the loop has taken from the line and not handed to its client."""
        self._line: list[tuple[str, bytes]] = []
        self._change = threading.Condition()
        self._sending = False
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._order = asyncio.Lock()
        self._error: Exception | None = None

    # Life.

    def start(self) -> Self:
        """Connect and log on. Raises the reason for failing."""
        self._loop.start(self._client.start())
        return self

    def close(self, timeout: float | None = None) -> None:
        """Send what was published, wait until it is acknowledged, and disconnect: within `timeout` seconds.

        Without a `timeout` the client's `close_timeout` counts. Raises OperatorError unsent_messages as
        AsyncClient.close does; messages that still stand in line count, too.
        """
        timeout = self._client.close_timeout if timeout is None else timeout
        if self._alone:
            self._loop.stop(self.stop_loop(timeout), timeout + STUCK_S)
        elif self._loop.is_running:
            self._loop.call(self.stop_loop(timeout), timeout + STUCK_S)

    async def stop_loop(self, timeout: float | None = None) -> None:
        """On the loop: close as `close` does. Calls at the same time are one closing, and each raises what
        that raises, or after its own `timeout` what is left then."""
        timeout = self._client.close_timeout if timeout is None else timeout
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(timeout))
        elif self._closing.done():
            return  # and told
        elif not (await asyncio.wait([self._closing], timeout=timeout))[0]:
            self._raise_for([*self._taken, *self._line], self._client.unsent)
            return
        await asyncio.shield(self._closing)

    async def _close(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(ends):
                    await self._send_line()
            left = self._empty_line()
            unsent = await self._client.disconnect(max(ends - loop.time(), 0))
            self._raise_for(left, unsent)
            self._raise_error()
            await self._client.close()  # which is done, and has refusals to tell
        finally:
            with self._change:  # whoever waits for room in the line waits for nothing now
                self._closed = True
                self._change.notify_all()

    def _raise_for(self, line: Sequence[tuple[str, bytes]], unsent: Unsent) -> None:
        nbytes = sum(len(body) for _, body in line)
        Unsent(unsent.messages + len(line), unsent.nbytes + nbytes).raise_for(self.name)

    def _empty_line(self) -> list[tuple[str, bytes]]:
        """Take out what the client has not got yet. A store that outlives the process gets it; return it
        otherwise."""
        with self._change:
            left = [*self._taken, *self._line]
            self._taken.clear()
            self._line.clear()
        while left and self._client.keep_in_file(*left[0]):
            del left[0]
        return left

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        with closing_notes(error):
            self.close(0 if is_interruption(error) else None)

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
    def notices(self) -> list[DecisionNotice]:
        """Notices of the broker's policies to this client, the newest 100."""
        return list(self._client.notices)

    # Publishing.

    def publish(self, topic: str, body: Body, timeout: float | None = None) -> None:
        """Publish one message: bytes as they are, text as UTF-8, anything else as JSON.

        Returns when the publish store has it, or with `buffered` when it stands in line; `flush()` says that
        the broker has it. Waits while the store, or the line, is full. In a callback of this client it stands
        in line, too.

        Raises:
            TimeoutError: It was full for `timeout` seconds; the message is not taken. None: no limit.
            OperatorError: store_failed, when the store's disk refused the message.
        """
        if not (self._buffered or self._loop.is_current):
            self._loop.call(self._client.store_messages(topic, [body], timeout))
            return
        if type(body) is not bytes:
            body = encode_body(body)
        if len(body) > MAX_BODY:
            raise message_too_large_error(len(body))
        check_topic(topic)
        with self._change:
            ends = None if timeout is None else time.monotonic() + timeout
            while len(self._line) >= MAX_LINE and self._error is None and not self._closed:
                self._keep_sending()
                self._loop.refuse_waiting()
                if not self._change.wait(None if ends is None else ends - time.monotonic()):
                    raise TimeoutError(f"publish took longer than {timeout:g} s")
            self._raise_error()
            self._keep_sending()
            self._line.append((topic, body))

    def _keep_sending(self) -> None:
        """Have the loop's thread take the line, unless it does already. Under the lock, so before it looks what stands there is in it."""
        if self._closed:
            raise self._loop.closed_error()
        if not self._sending:
            self._loop.submit(self._send_line())
            self._sending = True

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    async def _send_line(self) -> None:
        async with self._order:  # a second one, as of flush(), must not overtake the first
            while self._take_line():
                while self._taken:
                    topic, body = self._taken.popleft()
                    try:
                        await self._client.publish(topic, body)
                    except (SluiceError, OSError) as error:
                        self._stopped_at(error)
                        return

    def _stopped_at(self, error: Exception) -> None:
        """The next publish() or flush() raises it, and those after it go on with the rest."""
        with self._change:
            self._line[:0] = self._taken
            self._taken.clear()
            self._error, self._sending = error, False
            self._change.notify_all()

    def _take_line(self) -> bool:
        """Take the whole line; behind what a call that ran out of time has left. Return whether there is
        something."""
        with self._change:
            self._taken += self._line
            self._line.clear()
            self._sending = bool(self._taken)
            self._change.notify_all()
        return self._sending

    def publish_many(self, topic: str, bodies: Sequence[Body], timeout: float | None = None) -> None:
        """Publish messages of one topic as one batch. The publish store has them then; see `publish`."""
        self._loop.call(self._store_after_line(topic, bodies, timeout))

    async def _store_after_line(self, topic: str, bodies: Sequence[Body], timeout: float | None) -> None:
        async with within(timeout, "publish"):
            await asyncio.shield(self._send_line())
        self._raise_error()
        await self._client.store_messages(topic, bodies, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything published is acknowledged. Raises the first error, or TimeoutError after `timeout` seconds."""
        self._loop.call(self.wait_flushed(), timeout)

    async def wait_flushed(self) -> None:
        """On the loop: everything published so far is acknowledged."""
        # Shielded: a flush() whose time is over takes nothing out of the line with it.
        await asyncio.shield(self._send_line())
        self._raise_error()
        await self._client.flush()

    # Subscribing.

    def subscribe(
        self,
        topic: str,
        filter: str | None = None,
        bookmark: str | None = None,
        id: str | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> SyncSubscription:
        """Subscribe; see AsyncClient.subscribe."""
        subscription = self._loop.call(self._client.subscribe(topic, filter, bookmark, id, **options))
        return SyncSubscription(self._loop, subscription)

    def pause(self, subscriptions: Sequence[SyncSubscription]) -> None:
        """Pause several in one command; see AsyncClient.pause."""
        self._loop.call(self._client.pause(_parts(subscriptions)))

    def resume(self, subscriptions: Sequence[SyncSubscription]) -> None:
        """Resume several in one command; see AsyncClient.resume."""
        self._loop.call(self._client.resume(_parts(subscriptions)))

    def set_rate(
        self, subscriptions: Sequence[SyncSubscription], rate: str | None, max_gap: str | None = None
    ) -> None:
        """Another rate of several in one command; see AsyncClient.set_rate."""
        self._loop.call(self._client.set_rate(_parts(subscriptions), rate, max_gap))


class SyncSubscription:
    """A subscription of a SyncClient or of SyncGroups. Iterate it for messages, or `batches()` for record batches."""

    def __init__(self, loop: LoopThread, subscription: Subscription | GroupsSubscription) -> None:
        self._loop = loop
        self._subscription = subscription
        self._arrived: deque[ReceivedBatch] = deque()
        """Taken from the loop's thread together."""
        self._reading: deque[Iterator[Message]] = deque()
        """As `SubscriptionReader` has it."""

    @property
    def id(self) -> str:
        return self._subscription.id

    @property
    def gaps(self) -> list[GapNotice]:
        """Intervals that the log no longer held."""
        return list(self._subscription.gaps)

    @property
    def completed(self) -> bool:
        """Whether the replay has caught up."""
        return self._subscription.completed.is_set()

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self, *, until_completed: bool = False, timeout: float | None = None) -> Iterator[Message]:
        """The messages, one by one; with `until_completed` only those of the replay.

        Raises TimeoutError when none comes for `timeout` seconds; None waits until the subscription ends.
        Reading on after a stop, also with another call, continues with the next message.
        """
        reading, timestamp = self._reading, self._subscription.timestamp
        while not until_completed or self._left_of_replay() >= 0:
            while reading:
                rest = reading[0]
                yield from rest
                if reading and reading[0] is rest:
                    reading.popleft()
            arrived = self._take(until_completed, timeout)
            if arrived is None:
                return
            reading.append(batch_messages(*arrived, timestamp=timestamp))

    def batches(self, *, until_completed: bool = False, timeout: float | None = None) -> Iterator[Batch]:
        """The record batches as they arrived. A batch that `messages` has begun is left to it. `timeout`: see
        `messages`."""
        while (arrived := self._take(until_completed, timeout)) is not None:
            yield arrived.batch

    async def _take_all(self, until_completed: bool, timeout: float | None) -> list[ReceivedBatch]:
        # On the loop: a wait that ends there has taken nothing.
        async with within(timeout, "reading"):
            return await self._subscription.take_all(until_completed)

    def _take(self, until_completed: bool, timeout: float | None) -> ReceivedBatch | None:
        if not self._arrived:
            self._arrived += self._loop.call(self._take_all(until_completed, timeout))
        if not self._arrived or (until_completed and self._left_of_replay() <= 0):
            return None
        arrived = self._arrived.popleft()
        self._subscription.on_delivered(arrived)
        return arrived

    def _left_of_replay(self) -> float:
        return self._subscription.replay_batches_remaining() + len(self._arrived)

    def ack(self, item: Message | None = None) -> None:
        """Acknowledge a message, or everything of the batch that was read last; see Subscription.ack."""
        self._loop.call_soon(self._subscription.prepare_ack(item))

    def done(self, item: Message | Batch) -> None:
        """The application is done with it; see Subscription.done. Call it from one thread only."""
        # Without a change of threads: the loop's thread only appends to what this reads from the front.
        self._subscription.done(item)

    def bookmark_after(self, item: Message | Batch) -> str | None:
        """The bookmark to store with a result; see Subscription.bookmark_after."""
        return self._subscription.bookmark_after(item)

    def pause(self) -> None:
        """Deliver nothing until `resume()`. What is on its way still comes. ClientError not_steerable."""
        self._loop.call(self._subscription.pause())

    def resume(self) -> None:
        """Go on where it was paused."""
        self._loop.call(self._subscription.resume())

    def set_rate(self, rate: str | None, max_gap: str | None = None) -> None:
        """Another rate ("1000", "500KB", "2X"), or none, from now on. ClientError bad_rate."""
        self._loop.call(self._subscription.set_rate(rate, max_gap))

    def close(self, *, delete: bool = False) -> None:
        """Unsubscribe. Iterations end after what waits. `delete`: a durable one isn't kept either."""
        self._loop.call(self._subscription.close(delete=delete))


def _parts(subscriptions: Sequence[SyncSubscription]) -> list[Subscription]:
    return [part for one in subscriptions for part in one._subscription.parts]
