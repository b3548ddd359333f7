"""Publishing half of a client: gathers messages into batches and stores them until they are acknowledged.

Messages of one event-loop iteration form one batch, which is cut at `batch_bytes`. So a message costs two
list appends, and the other costs are per batch. A batch first enters the publish store and then the
connection. While there is no connection it stays in the store; the next connection sends all stored batches
in order.

An acknowledgement covers all smaller sequences. So after the broker rejects a batch, it accepts no later
batch before the client sends `skip`, and answers each of them with `refused_before`. The publisher stops
sending at the first rejection, reads the answers to everything it has sent, sends `skip`, and sends the
remaining batches again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from secrets import randbelow
from typing import cast

from broker_core.batch import (
    MAX_DICTIONARY,
    MAX_SESSION,
    ROW_SIZE,
    Batch,
    Buffer,
    build_batch,
    build_single_topic_batch,
    renumber,
)
from broker_core.client.links import ClientLink
from broker_core.client.messages import (
    MAX_BODY,
    Body,
    encode_body,
    message_too_large_error,
    split_into_batches,
)
from broker_core.client.publish_store import PublishStore, StoredBatch
from broker_core.client.time_limits import limit_time
from broker_core.errors import ClientError, OperatorError, SluiceError
from broker_core.protocols import commands
from broker_core.protocols.close_codes import reconnect_after_ms
from broker_core.protocols.names import check_topic
from broker_core.protocols.native import PUBLISH, encode_frame_header
from broker_core.protocols.replies import Ack, ErrorReply

log = logging.getLogger("sluice.client")


class _CompletedAwaitable:
    """Completed awaitable. `publish()` returns it to avoid the cost of a coroutine per message."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return _FINISHED_ITERATOR


_FINISHED_ITERATOR = cast("Generator[None, None, None]", iter(()))  # exhausted iterators can be shared
_COMPLETED = _CompletedAwaitable()


def _make_session() -> int:
    return 1 + randbelow(MAX_SESSION)


def _stored_session(store: PublishStore) -> int:
    """Return the session of the batches that an earlier client left in the store, or 0 if it is empty."""
    return next((Batch.parse(one.batch).session for one in store.pending()), 0)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Messages that the broker or the store's disk rejected, with the reason.

    They are removed from the publish store when `on_rejection` returns.

    Attributes:
        error: Reason.
        first: First rejected publisher sequence; None if it is unknown.
        last: Last rejected publisher sequence; None if it is unknown.
        batches: Rejected record batches, for `on_rejection`. Empty if the publish store does not have them.
    """

    error: SluiceError
    first: int | None
    last: int | None
    batches: tuple[Buffer, ...] = ()

    @property
    def messages(self) -> list[tuple[str, bytes]]:
        """Topic and body of each rejected message, in order."""
        messages: list[tuple[str, bytes]] = []
        for content in self.batches:
            batch = Batch.parse(content)
            topics = [batch.topics[int(index) - 1] for index in batch.topic_indexes]
            messages += zip(topics, batch.bodies(), strict=True)
        return messages


class Publisher:
    """Publishing half of a client, which numbers, gathers, stores and sends its messages.

    After a permanent failure, `failure` is the reason and nothing can be published.
    """

    def __init__(
        self,
        name: str,
        store: PublishStore,
        batch_bytes: int,
        on_rejection: Callable[[Rejection], None] | None,
        session: int = 0,
    ) -> None:
        self.store = store
        self.session = session or _stored_session(store) or _make_session()
        """Id of the session that counts this publisher's sequences.

        Every batch contains it, so stored batches retain it.
        """
        self.failure: SluiceError | None = None
        self.rejections: deque[Rejection] = deque(maxlen=1_000)
        self._name = name
        self._batch_bytes = batch_bytes
        self.on_rejection = on_rejection
        self._link: ClientLink | None = None
        self._next_sequence = store.last_sequence + 1
        self._change_broker: Callable[[], None] | None = None
        self._skips_rejected = not session
        """Whether messages after a rejected one are sent.

        False for a session that the caller chose: its sequences belong to another log, and no record may be
        skipped.
        """
        self._current_link: ClientLink | None = None
        """Current connection, also while stored batches are being sent on it. `_link` is set after them."""
        self._last_sent = 0
        """Last publisher sequence sent on this connection."""
        self._last_sent_before = store.last_sequence
        """Last publisher sequence that an earlier connection or process may have sent."""
        self._first_rejected = 0
        """First publisher sequence that was rejected and is not skipped yet; 0: none."""
        self._send_pass = 0
        """Number of times that stored batches were sent again.

        Answers to flushes of an earlier pass are ignored.
        """
        self._resend_task: asyncio.Task[None] | None = None
        self.acknowledged = 0
        """Newest sequence acknowledged as persisted to this process.

        Messages without a journal are not included.
        """
        self._topic: str | None = None
        self._topics: list[str] = []
        self._bodies: list[bytes] = []
        self._gathered_bytes = 0
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._bytes_since_yield = 0
        self._is_scheduled = False
        self._space_waiter: asyncio.Future[None] | None = None
        self._flushes: dict[str, tuple[int, asyncio.Future[None]]] = {}
        self._flush_number = 0

    # Publishing.

    def publish(self, topic: str, body: Body) -> Awaitable[None]:
        """Accept one message. The returned awaitable waits only while too many bytes are unacknowledged."""
        if type(body) is not bytes:
            body = encode_body(body)
        if topic != self._topic:
            self._topic = check_topic(topic)
        bodies = self._bodies
        if not bodies:
            self._start_batch()
        bodies.append(body)
        self._topics.append(topic)
        self._gathered_bytes += len(body) + ROW_SIZE
        if self._gathered_bytes < self._batch_bytes:
            return _COMPLETED
        return self._finish_full_batch(len(body))

    def _start_batch(self) -> None:
        if self.failure is not None:
            raise self.failure
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._finish_iteration)

    def _finish_full_batch(self, last_length: int) -> Awaitable[None]:
        if last_length > MAX_BODY:
            self._bodies.pop()
            self._topics.pop()
            self._gathered_bytes -= last_length + ROW_SIZE
            raise message_too_large_error(last_length)
        self.build_pending_batch()
        return self.wait_for_room()

    def _finish_iteration(self) -> None:
        store_error = None
        try:
            self.build_pending_batch()
        except OperatorError as error:
            store_error = error
        finally:
            # Only now: batches made above are written below, so they need no further iteration.
            self._is_scheduled = False
        self._write()
        if store_error is not None:
            # The store's disk rejected the batch. This callback has no caller, so flush() and publish() raise
            # the error.
            self._reject(Rejection(store_error, None, None))

    async def publish_many(self, topic: str, bodies: Sequence[Body]) -> None:
        """Publish messages of one topic, in order.

        Few messages join other messages of the event-loop iteration; many form one or more batches of their
        own. The broker's cost is per batch, so an application that publishes 16 messages at a time still gets
        batches of hundreds. As with `publish()`, gathered messages are in the store at the end of the
        iteration. Only `flush()` confirms that the broker has them.
        """
        check_topic(topic)
        if self.failure is not None:
            raise self.failure
        if set(map(type, bodies)) <= {bytes}:
            encoded = cast("Sequence[bytes]", bodies)
        else:
            encoded = [encode_body(body) for body in bodies]
        size = sum(map(len, encoded)) + ROW_SIZE * len(encoded)
        if self._gathered_bytes + size >= self._batch_bytes and self._bodies:
            self.build_pending_batch()
            await self.wait_for_room()
        if size < self._batch_bytes:
            if not self._bodies:
                self._start_batch()
            self._bodies += encoded
            self._topics += [topic] * len(encoded)
            self._gathered_bytes += size
            return
        for chunk in split_into_batches(encoded):
            self._store_batch(
                len(chunk),
                build_single_topic_batch(self._name, topic, chunk, self._next_sequence, self.session),
            )
            await self.wait_for_room()

    async def store_messages(self, topic: str, bodies: Sequence[Body], timeout: float | None = None) -> None:
        """Put messages of one topic into the store and send them. They are stored when this returns.

        Raises:
            TimeoutError: The store was full for `timeout` seconds; no message was accepted.
            OperatorError: `store_failed`. The batches before the failed one are stored.
        """
        check_topic(topic)
        batches = split_into_batches([body if type(body) is bytes else encode_body(body) for body in bodies])
        async with limit_time(timeout, "publish"):
            await self.wait_for_room()
        if self.failure is not None:
            raise self.failure
        self.store_batches(topic, batches)

    def store_batches(self, topic: str, batches: Sequence[Sequence[bytes]]) -> None:
        """Put batches of one topic into the store and send them, even if the store is full."""
        self.build_pending_batch()  # messages gathered earlier come first
        for batch_bodies in batches:
            self._store_batch(
                len(batch_bodies),
                build_single_topic_batch(self._name, topic, batch_bodies, self._next_sequence, self.session),
            )

    def flush_batch(self) -> None:
        """Build a batch of the gathered messages and write it to the connection."""
        self.build_pending_batch()
        self._write()

    def build_pending_batch(self) -> None:
        """Build a batch of the gathered messages.

        It is written at the end of the event-loop iteration at the latest.
        """
        topics, bodies = self._topics, self._bodies
        if not bodies:
            return
        self._topics, self._bodies, self._gathered_bytes = [], [], 0
        if topics.count(topics[0]) == len(topics):
            self._store_batch(
                len(bodies),
                build_single_topic_batch(self._name, topics[0], bodies, self._next_sequence, self.session),
            )
            return
        max_messages = MAX_DICTIONARY - 1  # no batch can have more topics than records
        for at in range(0, len(bodies), max_messages):
            chunk = bodies[at : at + max_messages]
            batch = build_batch(
                self._name,
                topics[at : at + max_messages],
                chunk,
                None,
                self._next_sequence,
                session=self.session,
            )
            self._store_batch(len(chunk), batch)

    def publish_numbered_batch(self, first: int, last: int, batch: bytearray) -> None:
        """Accept a batch whose records already have sequences, all above earlier ones.

        Some in between may be missing.
        """
        if self.failure is not None:
            raise self.failure
        self._store_numbered_batch(first, last, batch)

    def _store_batch(self, count: int, batch: bytearray) -> None:
        self._store_numbered_batch(self._next_sequence, self._next_sequence + count - 1, batch)

    def _store_numbered_batch(self, first: int, last: int, batch: bytearray) -> None:
        self.store.add(first, last, batch)
        self._next_sequence = last + 1
        size = len(batch)
        self._bytes_since_yield += size
        if self._link is not None:
            # Write many small batches together: a system call and a wake-up of the broker cost more than the
            # batches.
            self._outgoing += (encode_frame_header(PUBLISH, 0, size), batch)
            self._outgoing_bytes += size
            if self._outgoing_bytes >= self._batch_bytes:
                self._write()
            else:
                self._schedule()
        elif self._change_broker is not None:
            change_broker, self._change_broker = self._change_broker, None
            change_broker()

    def _write(self) -> None:
        outgoing, self._outgoing, self._outgoing_bytes = self._outgoing, [], 0
        if outgoing and self._link is not None:
            self._link.send(outgoing)
            self._last_sent = self._next_sequence - 1

    async def wait_for_room(self) -> None:
        """Yield to other tasks, then wait while the store or the connection's write buffer is full."""
        if self._bytes_since_yield >= self._batch_bytes:
            self._bytes_since_yield = 0
            await asyncio.sleep(0)
        while self.store.nbytes >= self.store.limit or (self._link is not None and self._link.paused):
            if self.failure is not None:
                raise self.failure
            if self._link is not None and self._link.paused:
                await self._link.drain()
                continue
            if self._space_waiter is None:
                self._space_waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._space_waiter)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all published messages are acknowledged.

        Raises:
            SluiceError: First rejection since the last flush.
            TimeoutError: After `timeout` seconds.
        """
        async with limit_time(timeout, "flush"):
            await self.wait_for_acknowledgements()
        self.raise_rejection()

    async def wait_for_acknowledgements(self) -> None:
        """Wait until all published messages are acknowledged or rejected.

        Raises:
            SluiceError: Reason why the client failed.
        """
        self.flush_batch()
        if self.store.nbytes:
            if self.failure is not None:
                raise self.failure
            self._flush_number += 1
            number, waiter = str(self._flush_number), asyncio.get_running_loop().create_future()
            self._flushes[number] = (self._next_sequence - 1, waiter)
            if self._link is not None:
                self._link.send_command(commands.Flush(id=self._flush_id(number)))
            try:
                await waiter
            finally:
                self._flushes.pop(number, None)

    def _flush_id(self, number: str) -> str:
        return f"{number}.{self._send_pass}"

    def raise_rejection(self) -> None:
        """Raise the first rejection since the last call, if there is one."""
        if self.rejections:
            error = self.rejections[0].error
            self.rejections.clear()
            raise error

    # Replies of the broker.

    def on_ack(self, ack: Ack) -> None:
        """Remove acknowledged batches from the store, and wake waiting publishers and flushes."""
        if ack.of == "flush":
            number, _, send_pass = (ack.id or "").partition(".")
            if send_pass == str(self._send_pass):
                self.store.discard_through(self._flushes.get(number, (0, None))[0])
            self._wake_waiters()
        elif ack.sequence is not None:
            if ack.ack == "persisted":
                self.acknowledged = max(self.acknowledged, ack.sequence)
                self.store.discard_through(ack.sequence)
            elif ack.ack == "processed":
                self.store.discard(ack.first or ack.sequence, ack.sequence)
            self._wake_waiters()

    def on_error(self, error: ErrorReply) -> None:
        """Handle rejected messages.

        Temporary failures of the broker are retried on the next connection. Other rejections are passed to
        the application.
        """
        if reconnect_after_ms(error.code) is not None:
            return  # the broker closes the connection next; the client then sends these messages again
        first, last = error.first, error.sequence
        if error.code != "refused_before":
            problem = ClientError.from_dict(error.code, error.message, error.fix, error.details)
            self._reject(Rejection(problem, first, last))
        if first is None or last is None:
            self._wake_waiters()
            return
        if error.code != "refused_before" and self._skips_rejected:
            self.store.discard(first, last)  # only after on_rejection has seen the batches
        self._stop_sending(first)
        self._wake_waiters()
        if last >= self._last_sent and self._skips_rejected:
            self._skip_rejected(last)

    def _reject(self, rejection: Rejection) -> None:
        """Remember a rejection and call the application's callback with the rejected batches."""
        self.rejections.append(rejection)
        if self.on_rejection is not None:
            if rejection.first is not None and rejection.last is not None:
                rejection = replace(rejection, batches=self._batches_between(rejection.first, rejection.last))
            try:
                self.on_rejection(rejection)
            except Exception:
                # An exception in the application's callback must not end the connection: the same rejection
                # would follow.
                log.exception("on_rejection of client %s failed", self._name)

    def _batches_between(self, first: int, last: int) -> tuple[Buffer, ...]:
        """Return the stored batches that lie completely within these sequences."""
        found = takewhile(lambda stored: stored.last <= last, self.store.pending(first - 1))
        return tuple(stored.batch for stored in found if stored.first >= first)

    def _stop_sending(self, first: int) -> None:
        """Send nothing more on this connection until everything that was sent is answered."""
        if not self._first_rejected:
            self._first_rejected = first
            self._write()
            self._link = None
            self._send_pass += 1

    def _skip_rejected(self, last: int) -> None:
        """Confirm to the broker all rejections up to sequence `last`, and send later batches again."""
        link, after = self._current_link, self._first_rejected - 1
        self._first_rejected = 0
        if link is None:
            return
        link.send_command(commands.Skip(sequence=last))
        self._resend_task = asyncio.get_running_loop().create_task(
            self._send_stored(link, after, self._send_pass)
        )

        def end(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                link.abort(cast(Exception, error))

        self._resend_task.add_done_callback(end)

    # Connections.

    async def on_connected(
        self, link: ClientLink, known_sequence: int, session: int | None = None, stored: int = 0
    ) -> None:
        """Handle a logon: discard what the broker has, send the other stored batches, then continue live.

        Args:
            link: The new connection.
            known_sequence: Newest sequence of this client name at the broker.
            session: Session that counted `known_sequence`. None: the publisher's own session.
            stored: Sequence of this publisher's session up to which the broker has everything.

        Raises:
            OperatorError: `store_failed`.
        """
        if session in (None, self.session):
            self.store.discard_through(known_sequence)
        else:
            self.store.discard_through(stored)
            if 0 < self.store.oldest_sequence() <= known_sequence:
                self._renumber(known_sequence)
        self._next_sequence = max(self._next_sequence, self.store.last_sequence + 1, known_sequence + 1)
        self._wake_waiters()
        self._current_link, self._last_sent, self._first_rejected = link, 0, 0
        self._send_pass += 1
        await self._send_stored(link, 0, self._send_pass)

    async def _send_stored(self, link: ClientLink, after: int, send_pass: int) -> None:
        """Send the stored batches that end after sequence `after`, then continue live.

        A rejection or the end of the connection increments `_send_pass`. This method then stops, because
        `send_pass` differs.
        """
        sent, more = after, self._send_pass == send_pass
        while more:
            more = False
            for entry in self.store.pending(sent):
                link.send((encode_frame_header(PUBLISH, 0, len(entry.batch)), entry.batch))
                self._last_sent, sent, more = entry.last, entry.last, True
                if link.paused:
                    await link.drain()
                    if self._send_pass != send_pass:
                        return
        if self._send_pass != send_pass:
            return
        # There was no await since the store was found empty beyond `sent`, so no batch can be missed in
        # between.
        self._link = link
        for number in self._flushes:
            link.send_command(commands.Flush(id=self._flush_id(number)))

    @property
    def possible_repeats(self) -> int:
        """Number of unacknowledged messages that an earlier connection may have sent."""
        pending = takewhile(lambda stored: stored.first <= self._last_sent_before, self.store.pending())
        return sum(Batch.parse(stored.batch, verify=False).count for stored in pending)

    def _renumber(self, known_sequence: int) -> None:
        """Renumber unacknowledged messages above the sequences of another session, under a new session.

        Batches with the old numbers may still be in transit, perhaps through another broker. The new session
        keeps them from being mistaken for the renumbered ones.
        """
        shift, session = known_sequence + 1 - self.store.oldest_sequence(), _make_session()

        def renumbered() -> Iterator[StoredBatch]:
            for first, last, batch in self.store.pending():
                copy = bytearray(batch)
                renumber(copy, session, first + shift)
                yield StoredBatch(first + shift, last + shift, copy)

        self.store.replace(renumbered())
        self.session = session
        self._next_sequence = self.store.last_sequence + 1
        self._flushes = {id: (target + shift, waiter) for id, (target, waiter) in self._flushes.items()}
        self.acknowledged = known_sequence

    def on_connected_read_only(self, change_broker: Callable[[], None]) -> None:
        """Send nothing to a broker that reported no `sequence`. The first message calls `change_broker`."""
        if self.store.nbytes:  # published since the logon reply was checked
            change_broker()
        else:
            self._change_broker = change_broker

    def on_disconnected(self) -> None:
        """Stop sending after a lost connection. Further messages go to the store."""
        self._link = self._current_link = self._change_broker = None
        self._last_sent_before = max(self._last_sent_before, self._last_sent)
        self._first_rejected = 0
        self._send_pass += 1
        if self._resend_task is not None:
            self._resend_task.cancel()
            self._resend_task = None
        self._outgoing, self._outgoing_bytes = [], 0

    def check_instance(self, known_sequence: int) -> None:
        """Refuse another instance that would mistake unacknowledged messages for repeats.

        Each instance counts the sequences of a client name separately.

        Raises:
            OperatorError: `other_instance`.
        """
        oldest = self.store.oldest_sequence()
        if 0 < oldest <= known_sequence:
            raise OperatorError(
                "other_instance",
                f"This instance already has other messages of {self._name} with numbers up to "
                f"{known_sequence}.",
                "Fail over only between transports of one instance, or flush() first.",
            )

    def open_store(self) -> None:
        """Continue after the stored sequences.

        Refuses a store of another client, whose batches carry that client's name.

        Raises:
            OperatorError: `store_of_another_client`.
        """
        self._next_sequence = max(self._next_sequence, self.store.last_sequence + 1)
        self._last_sent_before = max(self._last_sent_before, self.store.last_sequence)
        for stored in self.store.pending():
            batch = Batch.parse(stored.batch)
            self.session, owner = batch.session or self.session, batch.publisher_name
            if owner != self._name:
                raise OperatorError(
                    "store_of_another_client",
                    f"The publish store belongs to client {owner!r}, not {self._name!r}.",
                    "Use a separate store for each client.",
                )
            return

    def fail(self, error: SluiceError) -> None:
        """Fail the publisher permanently, with all waiting flushes."""
        self.failure = error
        self._link = None
        for _, waiter in self._flushes.values():
            if not waiter.done():
                waiter.set_exception(error)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Wake publishers that wait for room, and complete flushes whose messages are all acknowledged."""
        waiter, self._space_waiter = self._space_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if self._flushes:
            # Acknowledgements complete a flush, too: the answer `completed` may be late while others publish
            # on.
            oldest = self.store.oldest_sequence()
            for target, flushed in self._flushes.values():
                if (not oldest or oldest > target) and not flushed.done():
                    flushed.set_result(None)
