"""Publishing side of one connection: batches on their way to the disk, and replies that wait for them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from secrets import randbelow

import msgspec
import numpy as np

from broker_core import batch as batches
from broker_core.batch import MAX_SESSION, PROVEN, Batch
from broker_core.connections.connection_view import ConnectionView
from broker_core.connections.inbox import Inbox, InputPauseReason
from broker_core.connections.ports import ConnectionServices
from broker_core.errors import ClientError
from broker_core.protocols import commands, replies

MAX_UNCOMMITTED = 256
"""Maximum number of one client's batches, and of its waiting replies, on the way to the disk.

The log is one queue. A client that adds thousands of small batches would delay all others behind it. At some
30 µs of the broker's time each, one client's share is below 10 ms.
"""


MAX_TOPICS = 16
"""Number of topics that a publisher's counts distinguish.

Further topics are counted by their first word (`prices.>`), up to as many of those.
"""
REPORT_INTERVAL_S = 60.0
"""Minimum seconds between two notices to a client that publishes faster than its quota."""


def new_session() -> int:
    """Return a new publisher session for a client that names none."""
    return 1 + randbelow(MAX_SESSION)


class ConnectionPublisher:
    """Publishing side of a connection."""

    def __init__(self, connection: ConnectionView, inbox: Inbox, services: ConnectionServices) -> None:
        self._connection = connection
        self._inbox = inbox
        self._services = services
        self.named_session = 0
        """Publisher session that the logon named; 0: none."""
        self.session = 0
        """Session of the connection's numbered messages, with the bit PROVEN; 0 before the first one."""
        self.claimed = self.claimed_in_log = False
        """Whether the connection has claimed its name with a numbered batch, and with a journaled one."""
        self.has_stored_numbers = False
        """Whether the log has stored a numbered batch of this connection."""
        self.refused_upto = 0
        """Last publisher sequence that was refused and not skipped yet; 0: none.

        An acknowledgement covers all smaller numbers, so no later number is accepted until the skip.
        """
        self.topics: dict[str, int] = {}
        """Number of published messages by topic, or by topic pattern."""
        self._submitted = self._committed = 0
        """Number of batches submitted to the log, and number of durable ones.

        They become durable in order.
        """
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        """Callbacks. Each waits until that number of batches is durable."""
        self._reading = True
        self._resume_timer: asyncio.TimerHandle | None = None
        self._reported_until = 0.0

    @property
    def messages(self) -> int:
        """Number of published messages."""
        return sum(self.topics.values())

    def _count(self, topic: str, number: int) -> None:
        """Count published messages by topic, or by pattern when there are too many topics."""
        if topic not in self.topics and len(self.topics) >= MAX_TOPICS:
            word, dot, _ = topic.partition(".")
            topic = f"{word}.>" if dot else ">"
            if topic not in self.topics and len(self.topics) >= 2 * MAX_TOPICS:
                topic = ">"
        self.topics[topic] = self.topics.get(topic, 0) + number

    @property
    def pending_batches(self) -> int:
        """Number of batches that aren't durable yet."""
        return self._submitted - self._committed

    @property
    def has_unanswered_batches(self) -> bool:
        """Whether a batch or a flush waits for the disk, and for the destinations that must confirm it."""
        return self.pending_batches > 0 or bool(self._waiting)

    def publish_batch(self, payload: bytearray) -> None:
        """Publish a frame of records.

        Raises:
            ClientError: bad_batch, bad_topic, not_logged_on, not_entitled, over_quota or behind.
        """
        if not self._connection.logged_on:
            raise ClientError(
                "not_logged_on", "The first command must be a logon.", "Log on before publishing."
            )
        batch = Batch.parse(payload)
        try:
            # A connection with a session was checked at its first numbered batch.
            if not self.session and batch.first_publisher_sequence:
                self._connection.check_numbered()
            self._check(batch.topics, batch)
            self._services.publishing.publish(self._connection, batch, ())
        except ClientError as error:
            if batch.first_publisher_sequence:
                error.details |= {
                    "first": max(batch.first_publisher_sequence, self._accepted_number(batch.session) + 1),
                    "sequence": batch.last_publisher_sequence,
                }
            error.details["c"] = "publish"
            raise
        if batch.single_topic is not None:
            self._count(batch.single_topic, batch.count)
        else:
            rows = np.bincount(batch.topic_indexes, minlength=len(batch.topics) + 1)[1:]
            for topic, number in zip(batch.topics, rows.tolist(), strict=True):
                self._count(topic, number)

    def publish_one(self, command: commands.Publish) -> None:
        """Publish one record of a command.

        Raises:
            ClientError: as for `publish_batch`.
        """
        built = batches.build_single_topic_batch(
            self._connection.name, command.topic, [command.body()], command.sequence or 0
        )
        batch = Batch.parse(built, verify=False)
        answers = [replies.Ack(ack=ack, of="publish", id=command.id) for ack in command.ack]
        if command.sequence:
            self._connection.check_numbered()
        self._check((command.topic,), batch)
        self._services.publishing.publish(self._connection, batch, answers)
        self._count(command.topic, 1)

    def publish_records(
        self,
        topics: Sequence[str],
        bodies: Sequence[bytes],
        headers: Sequence[bytes],
        answers: Sequence[replies.Ack],
    ) -> None:
        """Publish records with headers as one batch: all of them are stored, or none.

        Raises:
            ClientError: as for `publish_batch`.
        """
        built = batches.build_batch(self._connection.name, topics, bodies, headers)
        numbers = Counter(topics)
        batch = Batch.parse(built, verify=False)
        self._check(tuple(numbers), batch)
        self._services.publishing.publish(self._connection, batch, answers)
        for topic, number in numbers.items():
            self._count(topic, number)

    def check_destination(self, topic: str) -> None:
        """Check that this client may publish to a topic.

        Raises:
            ClientError: not_entitled or not_journaled.
        """
        self._connection.rights.check_publish((topic,))
        self._services.publishing.check_queue(topic)

    def _accepted_number(self, session: int) -> int:
        """Return the newest publisher sequence that was accepted in this connection's session.

        Before the connection's first numbered batch, it is that of `session`, or if that is 0, of the session
        named at the logon.
        """
        session = self.session or self._with_proof(session & MAX_SESSION or self.named_session)
        return self._services.publishing.accepted_number(self._connection.name, session)

    def record_refusal(self, sequence: int) -> None:
        """Record that a publisher sequence was refused.

        No later one is accepted until the client skips it.

        A repeated batch was accepted before, so its refusal stops nothing.
        """
        if sequence > self._accepted_number(0):
            self.refused_upto = max(self.refused_upto, sequence)

    def skip(self, sequence: int) -> None:
        """Accept publisher sequences again.

        Raises:
            ClientError: refused_before, when later ones than `sequence` were refused, too. The client must
                read those refusals first.
        """
        if self.refused_upto > sequence:
            raise self._make_refused_before(f"Publisher sequences up to {self.refused_upto} were refused.")
        self.refused_upto = 0

    def make_refused_before(self, first: int, last: int) -> ClientError:
        """Return the error for a valid batch behind a refused one."""
        return self._make_refused_before(
            f"Publisher sequences {first} to {last} follow one that was refused on this connection."
        )

    def _make_refused_before(self, sentence: str) -> ClientError:
        return ClientError(
            "refused_before",
            sentence,
            "Read all refusals, send `skip` with the last refused number, then publish the rest again.",
            refused=self.refused_upto,
        )

    def _check(self, topics: Sequence[str], batch: Batch) -> None:
        """Check that the client may publish a batch. If it exceeds its rate quota, pause reading from it.

        A batch that was accepted before is accepted again, even if the client may not publish it any more.

        Raises:
            ClientError: not_entitled or over_quota.
        """
        connection = self._connection
        try:
            connection.rights.check_publish(topics)
            wait = self._services.quotas.charge_publish(connection, topics, batch.count)
        except ClientError:
            if 0 < batch.last_publisher_sequence <= self._accepted_number(batch.session):
                return
            raise
        if wait <= 0:
            return
        self._inbox.pause(InputPauseReason.QUOTA)
        loop = asyncio.get_running_loop()
        if self._resume_timer is not None:
            self._resume_timer.cancel()
        self._resume_timer = loop.call_later(wait, self._inbox.resume, InputPauseReason.QUOTA)
        if loop.time() >= self._reported_until:
            self._reported_until = loop.time() + REPORT_INTERVAL_S
            connection.reply(
                replies.DecisionNotice(
                    code="publish_paced",
                    message="You publish faster than a quota allows, and are read from more slowly.",
                    details={"wait_ms": int(wait * 1_000)},
                )
            )

    def assign_session(self, session: int) -> int:
        """Choose the session of this connection at its first numbered batch.

        Return it with the bit PROVEN.

        It is `session`, or if that is 0, the one that the logon named, or a new one.
        """
        self.session = self._with_proof(session or self.named_session or new_session())
        return self.session

    def _with_proof(self, session: int) -> int:
        """Return a publisher session with the bit PROVEN if the client is authenticated."""
        identity = self._connection.identity
        return session | PROVEN if identity is not None and identity.proven else session

    def on_submitted(self) -> None:
        """Count a submitted batch.

        Stop reading from the client while too many of its own or of all batches are pending.
        """
        self._submitted += 1
        self._update_input_pause()
        if self._services.publishing.is_congested and self._reading:
            self._reading = False
            self._inbox.pause(InputPauseReason.JOURNAL)
            self._services.publishing.wait_for_room(self._connection)

    def may_read(self) -> None:
        """Resume reading, because the log has capacity again."""
        if not self._reading:
            self._reading = True
            self._inbox.resume(InputPauseReason.JOURNAL)

    def on_committed(self, number: int) -> None:
        """Count durable batches, and call the functions that waited for them."""
        self._committed += number
        # Batches published later aren't waited for: a client that never stops would never get a reply.
        while self._waiting and self._waiting[0][0] <= self._committed:
            self._waiting.popleft()[1]()
        self._update_input_pause()
        if self._connection.has_ended_input:
            self._connection.close_when_answered()

    def _update_input_pause(self) -> None:
        """Pause or resume reading by the number of the client's pending batches and replies."""
        uncommitted = max(self.pending_batches, len(self._waiting))
        if uncommitted >= MAX_UNCOMMITTED:
            self._inbox.pause(InputPauseReason.PENDING_BATCHES)
        elif uncommitted < MAX_UNCOMMITTED // 2:
            self._inbox.resume(InputPauseReason.PENDING_BATCHES)

    def call_when_durable(self, callback: Callable[[], None]) -> None:
        """Call a function when all batches submitted so far are durable and delivered."""
        self._waiting.append((self._submitted, callback))

    def _reply_when_durable(self, answer: replies.Ack) -> None:
        """Send a reply when all batches submitted so far are durable."""
        self.call_when_durable(partial(self._connection.reply, answer))

    def flush(self, id: str) -> None:
        """Reply when all batches published so far are durable."""
        self._reply_when_durable(replies.Ack(ack="completed", of="flush", id=id))
        self.on_committed(0)

    def reply_when_committed(self, answers: Sequence[replies.Ack]) -> None:
        """Reply to a repeated batch.

        `persisted` and `completed` wait until the pending batches are durable.
        """
        for answer in answers:
            if answer.ack == "processed":
                self._connection.reply(answer)
            else:
                self._reply_when_durable(answer)
        self.on_committed(0)

    def on_forwarded(self, answers: Sequence[replies.Ack]) -> None:
        """Reply to an unjournaled batch.

        It is processed and never persisted, whatever ack the client requested.
        """
        if answers:
            self._connection.reply(msgspec.structs.replace(answers[0], ack="processed"))
