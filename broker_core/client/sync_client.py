"""Client for programs without asyncio: an AsyncClient on an event loop in its own thread.

`publish()` returns when the publish store has the message. With `buffered` it only appends to a queue, which
the loop's thread empties as a whole. So a message does not cost a thread switch. `publish()` waits while
MAX_QUEUED messages are queued. All other calls run on the loop and wait for their result.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
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
from broker_core.client.time_limits import limit_time
from broker_core.client.unsent import Unsent, closing_notes, is_interruption
from broker_core.errors import OperatorError, SluiceError
from broker_core.protocols.names import check_topic
from broker_core.protocols.replies import DecisionNotice, GapNotice

T = TypeVar("T")


class _LoopTimeoutError(TimeoutError):
    """The event loop had no result in time. A TimeoutError of the work itself has another class."""


class LoopThread:
    """Event loop in a thread of its own, called from other threads. `name` is the name of the client."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = 0
        """Number of calls of `stop` whose last work is not done."""
        self._lock = threading.Lock()
        """Protects `_loop`. Work for a loop that was asked to stop would never be answered."""

    @property
    def is_running(self) -> bool:
        """Whether the event loop was started and not stopped."""
        return self._loop is not None

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in a callback on this thread."""
        return self._thread is threading.current_thread()

    def start(self, first_work: Coroutine[Any, Any, object]) -> None:
        """Start the thread and wait until the first work is done. If that fails, the thread is stopped.

        Raises:
            OperatorError: `client_started` if it runs already.
            BaseException: Error of the first work.
        """
        if self.is_running:
            first_work.close()
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
            self.call(first_work)
        except BaseException:
            self._stop()
            raise

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(ready.set)
            self._loop.run_forever()

    def stop(self, last_work: Coroutine[Any, Any, object], timeout: float | None = None) -> None:
        """Run the last work, then stop the thread and wait for its end.

        Does nothing if the loop does not run.

        Of concurrent calls, the last one stops the thread.

        Raises:
            BaseException: Error of the last work.
            TimeoutError: A callback of the application has blocked the thread for `timeout` seconds. The
                thread ends when the callback returns. Never with `timeout` None, unless the last work raises
                it.
        """
        with self._lock:
            if self._loop is None:
                last_work.close()
                return
            self._stopping += 1
        blocked = False
        try:
            self.call(last_work, timeout)
        except _LoopTimeoutError:
            blocked = True
            raise TimeoutError(f"Client {self._name} didn't close within {timeout:g} s.") from None
        finally:
            with self._lock:
                self._stopping -= 1
                is_last_call = self._stopping == 0
            if is_last_call:
                self._stop(join=not blocked)

    def _stop(self, *, join: bool = True) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        thread, self._thread = self._thread, None
        if thread is not None and join:
            thread.join()

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run work on the event loop and return its result.

        Raises:
            TimeoutError: After `timeout` seconds. The work is cancelled.
            OperatorError: `client_closed`, or `callback_would_wait` on the loop's own thread.
            BaseException: Error of the work.
        """
        try:
            self.refuse_waiting()
        except OperatorError:
            work.close()
            raise
        future = self.submit(work)
        try:
            if timeout is not None and not wait([future], timeout).done:
                raise _LoopTimeoutError(f"Client {self._name} had no answer within {timeout:g} s.")
            return future.result()
        except CancelledError:
            if self.is_running:
                raise
            raise self.closed_error() from None
        except BaseException:
            future.cancel()
            raise

    def refuse_waiting(self) -> None:
        """Refuse to wait on the event loop's own thread, where the wait would never end.

        Raises:
            OperatorError: `callback_would_wait`.
        """
        if self.is_current:
            raise OperatorError(
                "callback_would_wait",
                f"Client {self._name} was called to wait in one of its own callbacks, which would "
                "never return.",
                "Do it in another thread.",
            )

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start work on the event loop without waiting.

        Raises:
            OperatorError: `client_closed`.
        """
        with self._lock:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise self.closed_error()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call a function on the event loop without waiting.

        Raises:
            OperatorError: `client_closed`.
        """
        with self._lock:
            if self._loop is None:
                raise self.closed_error()
            self._loop.call_soon_threadsafe(callback)

    def closed_error(self) -> OperatorError:
        """Return the error for calls while the event loop does not run."""
        return OperatorError(
            "client_closed", f"Client {self._name} isn't started or is closed.", "Start it first."
        )


MAX_QUEUED = 4_096
"""Maximum number of messages in the queue to the loop's thread."""
BLOCKED_LOOP_TIMEOUT_S = 1.0
"""Seconds beyond its timeout that `close()` waits for a loop that an application's callback blocks."""


class SyncClient:
    """Client for programs without asyncio. Use it from any thread, as a context manager."""

    def __init__(
        self, address: str | Sequence[str], name: str, *, buffered: bool = False, **options: Any
    ) -> None:
        """Create a client. `start()`, or entering `with`, connects it.

        Args:
            address: See `AsyncClient`.
            name: Unique client name.
            buffered: Whether `publish()` returns before the publish store has the message. This is about
                thirty times as fast. A process that is killed then loses up to MAX_QUEUED published messages;
                `flush()` confirms that the broker has them.
            options: Other arguments of `AsyncClient`. Callbacks run on the client's own thread.
        """
        self._initialise(
            AsyncClient(address, name, **options), LoopThread(name), owns_loop=True, buffered=buffered
        )

    @classmethod
    def share_loop(cls, loop: LoopThread, client: AsyncClient, *, buffered: bool) -> Self:
        """Create one of several clients that share a loop. The caller starts and stops the loop."""
        made = cls.__new__(cls)
        made._initialise(client, loop, owns_loop=False, buffered=buffered)
        return made

    def _initialise(self, client: AsyncClient, loop: LoopThread, *, owns_loop: bool, buffered: bool) -> None:
        self._client = client
        self._loop = loop
        self._owns_loop = owns_loop
        self._buffered = buffered
        self._dequeued: deque[tuple[str, bytes]] = deque()
        """Messages that the loop took from the queue and has not passed to the client."""
        self._queue: list[tuple[str, bytes]] = []
        """Queued messages, protected by `_queue_changed`."""
        self._queue_changed = threading.Condition()
        self._is_sending = False
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._send_lock = asyncio.Lock()
        self._error: Exception | None = None

    # Lifecycle.

    def start(self) -> Self:
        """Connect and log on; see `AsyncClient.start`.

        Raises:
            SluiceError: Reason of the failure.
        """
        self._loop.start(self._client.start())
        return self

    def close(self, timeout: float | None = None) -> None:
        """Send all published messages, wait until they are acknowledged, and disconnect.

        Args:
            timeout: Maximum seconds. None: the client's `close_timeout`.

        Raises:
            OperatorError: `unsent_messages`, as in `AsyncClient.close`. Messages that are still queued count,
                too.
        """
        timeout = self._client.close_timeout if timeout is None else timeout
        if self._owns_loop:
            self._loop.stop(self.close_on_loop(timeout), timeout + BLOCKED_LOOP_TIMEOUT_S)
        elif self._loop.is_running:
            self._loop.call(self.close_on_loop(timeout), timeout + BLOCKED_LOOP_TIMEOUT_S)

    async def close_on_loop(self, timeout: float | None = None) -> None:
        """Close the client, as `close` does. Runs on the event loop.

        Concurrent calls share one close, and each raises its error. A call whose own timeout expires first
        raises for the messages that are unsent then.
        """
        timeout = self._client.close_timeout if timeout is None else timeout
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(timeout))
        elif self._closing.done():
            return  # an earlier call has reported the result
        elif not (await asyncio.wait([self._closing], timeout=timeout))[0]:
            self._raise_if_unsent([*self._dequeued, *self._queue], self._client.unsent)
            return
        await asyncio.shield(self._closing)

    async def _close(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._send_queued()
            queued = self._drain_queue()
            unsent = await self._client.disconnect(max(deadline - loop.time(), 0))
            self._raise_if_unsent(queued, unsent)
            self._raise_error()
            await self._client.close()  # already disconnected: raises rejections that were not reported
        finally:
            with self._queue_changed:  # publishers that wait for room in the queue must wait no longer
                self._closed = True
                self._queue_changed.notify_all()

    def _raise_if_unsent(self, queued: Sequence[tuple[str, bytes]], unsent: Unsent) -> None:
        nbytes = sum(len(body) for _, body in queued)
        Unsent(unsent.messages + len(queued), unsent.nbytes + nbytes).raise_if_any(self.name)

    def _drain_queue(self) -> list[tuple[str, bytes]]:
        """Remove the queued messages. A store in a file receives them; otherwise they are returned."""
        with self._queue_changed:
            queued = [*self._dequeued, *self._queue]
            self._dequeued.clear()
            self._queue.clear()
        while queued and self._client.store_in_file(*queued[0]):
            del queued[0]
        return queued

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        with closing_notes(error):
            self.close(0 if is_interruption(error) else None)

    @property
    def name(self) -> str:
        """Unique client name."""
        return self._client.name

    @property
    def instance(self) -> str:
        """Instance to which the client is connected; "" before the first logon."""
        return self._client.instance

    @property
    def connected(self) -> bool:
        """Whether the client is logged on now."""
        return self._client.connected

    @property
    def connections(self) -> int:
        """Number of successful logons."""
        return self._client.connections

    @property
    def last_loss(self) -> ConnectionLoss | None:
        """Newest lost connection or failed attempt to connect, with its reason."""
        return self._client.last_loss

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of unacknowledged batches in the publish store, without queued messages."""
        return self._client.unacknowledged_bytes

    @property
    def notices(self) -> list[DecisionNotice]:
        """Newest 100 notices of the broker's policies to this client."""
        return list(self._client.notices)

    # Publishing.

    def publish(self, topic: str, body: Body, timeout: float | None = None) -> None:
        """Publish one message.

        Returns when the publish store has it, or with `buffered` when it is queued. `flush()` confirms that
        the broker has it. Waits while the store or the queue is full. In a callback of this client the
        message is queued, too.

        Args:
            topic: Exact topic.
            body: bytes are sent unchanged, str as UTF-8, anything else as JSON.
            timeout: Maximum seconds to wait. None: no limit.

        Raises:
            TimeoutError: The store or queue was full for `timeout` seconds. The message was not accepted.
            OperatorError: `store_failed`, when the store's disk rejected the message.
        """
        if not (self._buffered or self._loop.is_current):
            self._loop.call(self._client.store_messages(topic, [body], timeout))
            return
        if type(body) is not bytes:
            body = encode_body(body)
        if len(body) > MAX_BODY:
            raise message_too_large_error(len(body))
        check_topic(topic)
        with self._queue_changed:
            deadline = None if timeout is None else time.monotonic() + timeout
            while len(self._queue) >= MAX_QUEUED and self._error is None and not self._closed:
                self._ensure_sending()
                self._loop.refuse_waiting()
                if not self._queue_changed.wait(None if deadline is None else deadline - time.monotonic()):
                    raise TimeoutError(f"publish took longer than {timeout:g} s")
            self._raise_error()
            self._ensure_sending()
            self._queue.append((topic, body))

    def _ensure_sending(self) -> None:
        """Make the loop's thread empty the queue, unless it does so already.

        The caller holds the lock, so a message that it appends afterwards is included.
        """
        if self._closed:
            raise self._loop.closed_error()
        if not self._is_sending:
            self._loop.submit(self._send_queued())
            self._is_sending = True

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    async def _send_queued(self) -> None:
        async with self._send_lock:  # a concurrent call, such as flush(), must not overtake an earlier one
            while self._dequeue():
                while self._dequeued:
                    topic, body = self._dequeued.popleft()
                    try:
                        await self._client.publish(topic, body)
                    except (SluiceError, OSError) as error:
                        self._stop_after_error(error)
                        return

    def _stop_after_error(self, error: Exception) -> None:
        """Stop emptying the queue after an error.

        The next publish() or flush() raises it; later calls continue.
        """
        with self._queue_changed:
            self._queue[:0] = self._dequeued
            self._dequeued.clear()
            self._error, self._is_sending = error, False
            self._queue_changed.notify_all()

    def _dequeue(self) -> bool:
        """Move all queued messages to `_dequeued`, behind messages of an earlier call that timed out.

        Returns whether there are any.
        """
        with self._queue_changed:
            self._dequeued += self._queue
            self._queue.clear()
            self._is_sending = bool(self._dequeued)
            self._queue_changed.notify_all()
        return self._is_sending

    def publish_many(self, topic: str, bodies: Sequence[Body], timeout: float | None = None) -> None:
        """Publish messages of one topic as one batch.

        Returns when the publish store has them; see `publish`.
        """
        self._loop.call(self._store_after_queued(topic, bodies, timeout))

    async def _store_after_queued(self, topic: str, bodies: Sequence[Body], timeout: float | None) -> None:
        async with limit_time(timeout, "publish"):
            await asyncio.shield(self._send_queued())
        self._raise_error()
        await self._client.store_messages(topic, bodies, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all published messages are acknowledged; see `AsyncClient.flush`.

        Raises:
            SluiceError: First rejection since the last `flush()`, or the reason why the client failed.
            TimeoutError: After `timeout` seconds.
        """
        self._loop.call(self.wait_flushed(), timeout)

    async def wait_flushed(self) -> None:
        """Wait until all messages published so far are acknowledged. Runs on the event loop."""
        # Shielded: a flush() whose timeout expires must not lose messages that it took from the queue.
        await asyncio.shield(self._send_queued())
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
        """Subscribe to a topic pattern; see `AsyncClient.subscribe`."""
        subscription = self._loop.call(self._client.subscribe(topic, filter, bookmark, id, **options))
        return SyncSubscription(self._loop, subscription)

    def pause(self, subscriptions: Sequence[SyncSubscription]) -> None:
        """Pause several subscriptions in one command; see `AsyncClient.pause`."""
        self._loop.call(self._client.pause(_subscriptions_by_group(subscriptions)))

    def resume(self, subscriptions: Sequence[SyncSubscription]) -> None:
        """Resume several subscriptions in one command; see `AsyncClient.resume`."""
        self._loop.call(self._client.resume(_subscriptions_by_group(subscriptions)))

    def set_rate(
        self, subscriptions: Sequence[SyncSubscription], rate: str | None, max_gap: str | None = None
    ) -> None:
        """Change the rate of several subscriptions in one command; see `AsyncClient.set_rate`."""
        self._loop.call(self._client.set_rate(_subscriptions_by_group(subscriptions), rate, max_gap))


class SyncSubscription:
    """Subscription of a SyncClient or of SyncGroups.

    Iterate it for messages, or `batches()` for record batches.
    """

    def __init__(self, loop: LoopThread, subscription: Subscription | GroupsSubscription) -> None:
        self._loop = loop
        self._subscription = subscription
        self._unread_batches: deque[ReceivedBatch] = deque()
        """Batches that were taken from the loop's thread together, not delivered yet."""
        self._partly_read: deque[Iterator[Message]] = deque()
        """Unread messages of batches that `messages` has started."""

    @property
    def id(self) -> str:
        """Id of the subscription, also in the bookmark store."""
        return self._subscription.id

    @property
    def gaps(self) -> list[GapNotice]:
        """Intervals that the log no longer had."""
        return list(self._subscription.gaps)

    @property
    def completed(self) -> bool:
        """Whether the replay has caught up."""
        return self._subscription.completed.is_set()

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self, *, until_completed: bool = False, timeout: float | None = None) -> Iterator[Message]:
        """Iterate over the messages; with `until_completed` only over those of the replay.

        A reader that stops and later reads on, also with another call, continues with the next message.

        Raises:
            TimeoutError: No message arrived for `timeout` seconds. None: wait until the subscription ends.
            SluiceError: Reason why the subscription cannot continue.
        """
        partly_read, timestamp = self._partly_read, self._subscription.timestamp
        while not until_completed or self._replay_batches_remaining() >= 0:
            while partly_read:
                remaining = partly_read[0]
                yield from remaining
                if partly_read and partly_read[0] is remaining:
                    partly_read.popleft()
            arrived = self._next_batch(until_completed, timeout)
            if arrived is None:
                return
            partly_read.append(batch_messages(*arrived, timestamp=timestamp))

    def batches(self, *, until_completed: bool = False, timeout: float | None = None) -> Iterator[Batch]:
        """Iterate over the record batches as they arrived; see `messages` for `timeout`.

        A batch that `messages` has started is left to `messages`.
        """
        while (arrived := self._next_batch(until_completed, timeout)) is not None:
            yield arrived.batch

    async def _take_all(self, until_completed: bool, timeout: float | None) -> list[ReceivedBatch]:
        # The timeout applies on the loop, so that a wait that times out has taken nothing.
        async with limit_time(timeout, "reading"):
            return await self._subscription.take_all(until_completed)

    def _next_batch(self, until_completed: bool, timeout: float | None) -> ReceivedBatch | None:
        if not self._unread_batches:
            self._unread_batches += self._loop.call(self._take_all(until_completed, timeout))
        if not self._unread_batches or (until_completed and self._replay_batches_remaining() <= 0):
            return None
        arrived = self._unread_batches.popleft()
        self._subscription.on_delivered(arrived)
        return arrived

    def _replay_batches_remaining(self) -> float:
        return self._subscription.replay_batches_remaining() + len(self._unread_batches)

    def ack(self, item: Message | None = None) -> None:
        """Acknowledge a message, or all messages of the batch that was read last; see `Subscription.ack`.

        Raises:
            OperatorError: `no_acks`.
        """
        self._loop.call_soon(self._subscription.prepare_ack(item))

    def done(self, item: Message | Batch) -> None:
        """Mark a message or batch as processed; see `Subscription.done`. Call it from one thread only."""
        # No switch to the loop's thread is needed: that thread only appends to the data that this reads from
        # the front.
        self._subscription.done(item)

    def bookmark_after(self, item: Message | Batch) -> str | None:
        """Return the bookmark to store with a result; see `Subscription.bookmark_after`."""
        return self._subscription.bookmark_after(item)

    def pause(self) -> None:
        """Pause delivery until `resume()`; see `Subscription.pause`.

        Raises:
            ClientError: `not_steerable`.
        """
        self._loop.call(self._subscription.pause())

    def resume(self) -> None:
        """Resume delivery after `pause()`; see `Subscription.resume`."""
        self._loop.call(self._subscription.resume())

    def set_rate(self, rate: str | None, max_gap: str | None = None) -> None:
        """Change the rate limit; None removes it. See `Subscription.set_rate`.

        Raises:
            ClientError: `bad_rate`.
        """
        self._loop.call(self._subscription.set_rate(rate, max_gap))

    def close(self, *, delete: bool = False) -> None:
        """Unsubscribe. Iterations end after the messages that were already received.

        `delete` also deletes a durable subscription at the broker.
        """
        self._loop.call(self._subscription.close(delete=delete))


def _subscriptions_by_group(subscriptions: Sequence[SyncSubscription]) -> list[Subscription]:
    return [part for one in subscriptions for part in one._subscription.subscriptions]
