"""Publisher sequences of an instance: finished ones, ones in flight to the disk, and repeats of either.

`journal.publishers` decides. This module replies to publishers and closes those that have lost their name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from broker_core.batch import MAX_SESSION, PROVEN, Batch
from broker_core.connections.connection_view import ConnectionView
from broker_core.connections.ports import PublisherPosition
from broker_core.connections.roster import ConnectionTable
from broker_core.errors import ClientError
from broker_core.journal.publishers import (
    Publishers,
    Refusal,
    SessionNumber,
    Sessions,
    judge,
    may_be_forgotten,
    may_ignore,
    newest_number,
    number_of,
    with_number,
)
from broker_core.protocols import replies
from broker_core.subscriptions.journaled_topics import JournaledTopics
from broker_core.subscriptions.partition import BatchPartition

MAX_JUMP = 2**40
"""Maximum increase of a publisher's sequence: a million per second for twelve days.

After a higher number, everything that its owner publishes would look like a repeat.
"""
MAX_REPEATS = 10_000
"""Maximum replies of one client that wait until the batches it repeated are durable."""


@dataclass(slots=True)
class PendingAck:
    """Acknowledgement that a client gets when its batch is durable.

    Attributes:
        last_publisher_sequence: Number that is acknowledged with it; 0 for none.
        answers: Replies to the commands of the batch.
        beside: Records of the same batch that no journal stores.
        behind: Batches published after it that no journal stores.
    """

    connection: ConnectionView
    last_publisher_sequence: int
    answers: Sequence[replies.Ack]
    partition: BatchPartition | None = None
    trailing: tuple[UnjournaledPart, ...] = ()
    delivered: bool = False
    """Whether the batch was delivered, with the records `partition` and `trailing` it."""


class UnjournaledPart(NamedTuple):
    """Batch that no journal stores, its connection, and the replies to its commands.

    The batch may wait behind one that a former connection of the same publisher sent.
    """

    connection: ConnectionView
    batch: Batch
    answers: Sequence[replies.Ack]


@dataclass(slots=True)
class InFlightPublishes:
    """Batches of one publisher that the broker has accepted and that are not durable yet."""

    newest: PendingAck
    batches: int = 0
    session: int = 0
    accepted: int = 0
    """Newest accepted number of `session`, journaled or not; 0 for none, or if the session was superseded.

    No later batch of the session has a smaller number.
    """
    claimant: int = 0
    """Session whose claim on the name, or batches behind it, are in flight to the journal.

    0 for none, or if the session was superseded.
    """

    def join(self, finished: Sessions) -> Sessions:
        """Return the publisher's sessions as they will be if all batches in flight enter the log."""
        if not finished or finished[0].session != self.session:
            return with_number(finished, self.session, max(self.accepted, number_of(finished, self.session)))
        if finished[0].number >= self.accepted:
            return finished
        return (SessionNumber(self.session, self.accepted), *finished[1:])


class UnconfirmedAck(NamedTuple):
    """Acknowledgement of a batch that is durable here and waits for sync members or sync destinations.

    It is sent when these have every record up to `sequence`. `waiting` is None for a batch of another
    member's client.
    """

    sequence: int
    publisher: str
    session: int
    number: int
    waiting: PendingAck | None


@dataclass(slots=True)
class FinishedBatches:
    """Finished batches whose publishers are acknowledged next.

    Attributes:
        numbers: Newest number of each publisher and session.
        batches: Number of finished batches of each client.
        behind: Acknowledgements with unjournaled batches behind them.
    """

    numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    batches: dict[ConnectionView, int] = field(default_factory=dict)
    trailing: list[PendingAck] = field(default_factory=list)


@dataclass(slots=True)
class DuplicatePublish:
    """Messages that a client repeated while the first copies were in flight to the disk.

    Attributes:
        last: Highest repeated number.
        last_journaled: Highest repeated number of a batch with journaled records; 0 for none.
        answers: Replies that wait until `last` is finished.
    """

    last: int = 0
    last_journaled: int = 0
    answers: list[replies.Ack] = field(default_factory=list)


class PublisherNumbers:
    """Publisher sequences of an instance, by publisher name and session."""

    def __init__(self, stored: Publishers, roster: ConnectionTable) -> None:
        self.finished = Publishers(stored)
        """Sessions and newest finished number of each publisher.

        A number is finished when its record is durable, or when no journal stores the record and no earlier
        one waits for the disk.
        """
        self.in_flight: dict[str, InFlightPublishes] = {}
        """Batches in flight to the disk, by publisher."""
        self.repeats: dict[ConnectionView, DuplicatePublish] = {}
        self.superseded: list[ConnectionView] = []
        """Clients that lost their name to another member's client.

        They are closed after they are acknowledged.
        """
        self._roster = roster

    def position(self, name: str, session: int, *, proven: bool) -> PublisherPosition:
        """Return the numbers that the logon reply reports for a client's name.

        Args:
            name: Client name.
            session: Session that the client named; 0 if none.
            proven: Whether the client's identity is proven.
        """
        sessions = self.finished.get(name, ())
        proven_session = session | PROVEN if proven else session
        stored = number_of(sessions, proven_session) if session else 0
        forgotten = session != 0 and may_be_forgotten(sessions, proven_session)
        if not sessions or may_ignore(sessions, proven_session):
            return PublisherPosition(stored, None, stored, forgotten)
        return PublisherPosition(sessions[0].number, sessions[0].session & MAX_SESSION, stored, forgotten)

    def accepted_number(self, name: str, session: int) -> int:
        """Return the newest accepted publisher sequence of a session: finished or in flight; 0 if none."""
        accepted, in_flight = self.finished.get(name, ()), self.in_flight.get(name)
        if in_flight is not None and in_flight.accepted:
            accepted = in_flight.join(accepted)
        return number_of(accepted, session)

    def drop_repeats(
        self,
        connection: ConnectionView,
        batch: Batch,
        answers: Sequence[replies.Ack],
        topics: JournaledTopics,
    ) -> Batch | None:
        """Return the part of a batch that was not published before; None if there is none.

        Also returns None when the client has lost its name. In both cases the client was replied to or
        closed.

        Raises:
            ClientError: bad_batch, too_many_repeats.
        """
        first, session = batch.header.first_publisher_sequence, batch.session
        if first == 0:
            return batch
        last = batch.last_publisher_sequence
        accepted = finished = self.finished.get(connection.name, ())
        in_flight = self.in_flight.get(connection.name)
        if in_flight is not None and in_flight.accepted:
            accepted = in_flight.join(finished)
        above = judge(accepted, session, first, last, claims=not connection.publishing.claimed)
        if above is Refusal.REPEATED:
            waits = last > number_of(finished, session)
            self._answer_repeat(connection, batch, answers, topics, waits=waits)
            return None
        if above is Refusal.SUPERSEDED:
            self.close_superseded(connection, claims=not connection.publishing.claimed)
            return None
        if last > above + MAX_JUMP:
            known = above if may_ignore(accepted, session) else max(above, newest_number(accepted))
            if last > known + MAX_JUMP:
                raise ClientError(
                    "bad_batch",
                    f"The batch has numbers up to {last}, but this publisher's last known number is {known}.",
                    "Number messages consecutively, starting after the `sequence` of the logon's answer.",
                    position=72,
                )
        if first > above:
            return batch
        rows = np.nonzero(batch.publisher_sequences() > above)[0]
        return batch.select(rows, explicit=False)

    def close_superseded(self, connection: ConnectionView, *, claims: bool) -> None:
        """Close a client that may not publish under its name any more.

        Later connections of the session that repeated messages which now are not stored must log on again,
        too.

        Args:
            connection: Client to close.
            claims: Whether it never held the name on this connection. Then the `sequence` of its logon reply
                was out of date, and a new logon reports the right one.
        """
        name, session = connection.name, connection.publishing.session
        self.repeats.pop(connection, None)
        for repeat in [one for one in self.repeats if one.name == name and one.publishing.session == session]:
            self.close_superseded(repeat, claims=True)
        if claims:
            connection.close(
                "stale_sequence",
                f"Another client has published as {name} since you logged on, so your numbers aren't new.",
                "Log on again, and renumber unacknowledged messages from the new `sequence` on.",
            )
        else:
            connection.close("client_replaced", f"Another client has published as {name}.")

    def _answer_repeat(
        self,
        connection: ConnectionView,
        batch: Batch,
        answers: Sequence[replies.Ack],
        topics: JournaledTopics,
        *,
        waits: bool,
    ) -> None:
        """Reply to a repeat: `persisted` when the first copy is durable, `processed` where not journaled.

        `waits`: the first copy is in flight to the disk, or waits behind a batch that is. It may be refused.
        """
        first, last = batch.first_publisher_sequence, batch.last_publisher_sequence
        is_journaled = topics.split_batch(batch).journaled is not None
        if waits and not is_journaled:
            forwarded = [msgspec.structs.replace(answers[0], ack="processed")] if answers else []
            self._wait_for_repeat(connection, last, forwarded or [replies.processed_ack(first, last)])
        elif waits:
            for answer in answers:
                if answer.ack == "processed":
                    connection.reply(answer)
            later = [answer for answer in answers if answer.ack != "processed"]
            self._wait_for_repeat(connection, last, later, last_journaled=last)
        elif is_journaled:
            connection.reply(replies.persisted_ack(last))
            connection.publishing.reply_when_committed(answers)
        else:
            connection.publishing.on_forwarded(answers)
            if not answers:
                connection.reply(replies.processed_ack(first, last))

    def _wait_for_repeat(
        self,
        connection: ConnectionView,
        last: int,
        answers: Sequence[replies.Ack],
        *,
        last_journaled: int = 0,
    ) -> None:
        """Delay the replies to a repeat until the first copy is finished.

        Raises ClientError too_many_repeats.
        """
        waiting = self.repeats.get(connection)
        if waiting is None:
            waiting = self.repeats[connection] = DuplicatePublish()
            connection.publishing.on_submitted()
        if len(waiting.answers) + len(answers) > MAX_REPEATS:
            raise ClientError(
                "too_many_repeats",
                f"More than {MAX_REPEATS} answers to repeated messages wait for the disk.",
                "Repeat only messages after the `sequence` of the logon acknowledgement.",
            )
        waiting.last = max(waiting.last, last)
        waiting.last_journaled = max(waiting.last_journaled, last_journaled)
        waiting.answers += answers

    def record_foreign_batch(self, name: str, session: int, last: int) -> None:
        """Record a batch that no client of this broker waits for.

        It is the broker's own, or of another member's client, which may connect here next. A client of this
        broker that held the name until then is closed, once it knows which of its messages are stored.
        """
        if not last:
            return
        previous = self.finished.get(name, ())
        self.finished.note(name, session, last)
        if previous and previous[0].session != session:
            in_flight = self.in_flight.get(name)
            if in_flight is not None and in_flight.session == previous[0].session:
                in_flight.accepted = 0
            client = self._roster.clients.get(name)
            if client is not None and client.publishing.session == previous[0].session:
                self.superseded.append(client)

    def close_superseded_clients(self) -> None:
        """Close the clients that lost their name to another member's client."""
        superseded, self.superseded = self.superseded, []
        for client in superseded:
            self.close_superseded(client, claims=not client.publishing.has_stored_numbers)

    def record_finished(self, name: str, session: int = 0, number: int = 0) -> None:
        """Record that a batch of a publisher's session is finished, with numbers up to `number`.

        When no batch of the publisher is in flight any more, also record the newest unjournaled number behind
        it. Call it for each batch in the order of the log, because the session that published last holds the
        name. A batch that the log had already changes nothing.
        """
        if number > number_of(self.finished.get(name, ()), session):
            self.finished.note(name, session, number)
        in_flight = self.in_flight.get(name)
        if in_flight is None or in_flight.batches:
            return
        del self.in_flight[name]
        if (in_flight.accepted > number or in_flight.session != session) and in_flight.accepted > number_of(
            self.finished.get(name, ()), in_flight.session
        ):
            self.finished.note(name, in_flight.session, in_flight.accepted)

    def answer_repeats(self) -> None:
        """Reply to the repeats whose first copies are finished now; forget those of closed connections."""
        for connection, waiting in list(self.repeats.items()):
            sessions = self.finished.get(connection.name, ())
            if connection.is_closed:
                del self.repeats[connection]
            elif number_of(sessions, connection.publishing.session) >= waiting.last:
                del self.repeats[connection]
                if waiting.last_journaled:
                    connection.reply(replies.persisted_ack(waiting.last_journaled))
                for answer in waiting.answers:
                    connection.reply(answer)
                connection.publishing.on_committed(1)


def assign_session(connection: ConnectionView, batch: Batch) -> None:
    """Assign a numbered batch its session: the one it names, or that of the connection.

    Raises:
        ClientError: bad_batch.
    """
    session = batch.session
    if session > MAX_SESSION:
        raise ClientError(
            "bad_batch",
            f"The publisher session {session} isn't one that a client can have.",
            f"Number with a session between 1 and {MAX_SESSION}.",
            position=44,
        )
    if not batch.header.first_publisher_sequence:
        return
    assigned = connection.publishing.session or connection.publishing.assign_session(session)
    if session and session != assigned & MAX_SESSION:
        raise ClientError(
            "bad_batch",
            f"The batch is of publisher session {session}, and this connection publishes as another.",
            "Log on again to publish as another session.",
            position=44,
        )
    batch.session = assigned
