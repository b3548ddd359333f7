"""Property test of publisher sessions in a group, for any actions of clients of one name on any members.

A record reported as stored is stored once, and a reconnecting client can publish its unsent records.

The clients are the library's publishers with their stores. The members use the broker's own state machine,
dispatch and publishing connections. An example decides four things: which client logs on where; when gathered
batches get into the log; how many entries members apply at once; which batches a member refuses, and whether
the client reads the refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_core.access import ALL_RIGHTS, Rights
from broker_core.batch import CLAIM, Batch, Buffer, write_flags
from broker_core.client.publish_store import MemoryPublishStore
from broker_core.client.publisher import Publisher, Rejection
from broker_core.connections import publisher as publishing
from broker_core.engine.dispatch import Dispatcher
from broker_core.engine.publisher_numbers import PendingAck
from broker_core.errors import ClientError
from broker_core.group.engine_log import EntrySender, LogEntry
from broker_core.group.hash_chain import HashChain
from broker_core.group.state_machine import START_POSITION, LogStateMachine, decode_batches
from broker_core.journal.commit_log import PendingBatch
from broker_core.journal.journal import Journal
from broker_core.journal.publishers import Publishers, Refusal
from broker_core.protocols import replies
from broker_core.protocols.commands import Skip
from broker_core.subscriptions.destinations import SyncDestinationFilter
from broker_core.subscriptions.journaled_topics import JournaledTopics
from tests.support.brokers import tcp_policy

NAME, CLIENTS, MEMBERS = "feed", 3, 2


class EmptyJournal:
    """The journal that an order begins with."""

    origin, epoch, next_sequence, last_at = 1, 1, 1, 0

    def __init__(self) -> None:
        self.publishers = Publishers()


class ModelConnection:
    """A client's connection to a member, with the member's publishing side of it."""

    logged_on, paused, has_ended_input, identity = True, False, False, None

    def __init__(self, client: ModelPublisher, member: ModelMember) -> None:
        self.client, self.member, self.name = client, member, NAME
        self.closed = False
        self.refuses = False
        """If set, the member refuses the next batch."""
        self.rights = ALL_RIGHTS
        self.unread: list[replies.ErrorReply] = []
        inbox = SimpleNamespace(pause=lambda reason: None, resume=lambda reason: None)
        self.publishing = publishing.ConnectionPublisher(cast(Any, self), cast(Any, inbox), member.services)

    @property
    def is_closed(self) -> bool:
        return self.closed

    # As the client sees it.

    def send(self, parts: Any) -> None:
        for part in parts:
            if len(part) > 64:
                self.publish(part)

    def send_command(self, command: object) -> None:
        if isinstance(command, Skip):
            self.publishing.skip(command.sequence)  # raises if not every refusal was read before

    async def read(self) -> None:
        """Pass the refusals to the client, which may send the records after them."""
        while self.unread and not self.closed:
            self.client.publisher.on_error(self.unread.pop(0))
            await asyncio.sleep(0)

    def publish(self, sent: Buffer) -> None:
        if self.closed:
            return
        self.rights = Rights([]) if self.refuses else ALL_RIGHTS
        self.refuses = False
        try:
            self.publishing.publish_batch(bytearray(sent))
        except ClientError as error:
            assert error.code in ("not_entitled", "refused_before")
            self.publishing.record_refusal(error.details["sequence"])
            self.unread.append(replies.error_reply(error))

    # As the member sees it.

    def check_numbered(self) -> None:
        """The members of this model are never cut off."""

    def reply(self, answer: replies.Reply) -> None:
        if isinstance(answer, replies.Ack) and not self.closed:
            self.client.publisher.on_ack(answer)

    def close(self, code: str = "", message: str = "", fix: str = "") -> None:
        if self.closed:
            return
        self.closed = True
        if self.member.clients.get(NAME) is self:
            del self.member.clients[NAME]
        if self.client.connection is self:
            self.client.connection = None
            self.client.publisher.on_disconnected()


@dataclass
class ModelPublisher:
    """A publisher of the client library; each message it publishes is unique."""

    number: int
    publisher: Publisher = field(init=False)
    connection: ModelConnection | None = None
    published: int = 0
    refused: list[bytes] = field(default_factory=list)
    """Messages reported to the application as refused."""

    def __post_init__(self) -> None:
        self.publisher = Publisher(NAME, MemoryPublishStore(), 1 << 16, self.reject)

    def reject(self, rejection: Rejection) -> None:
        self.refused += [body for _, body in rejection.messages]

    async def publish(self, count: int) -> None:
        for _ in range(count):
            await self.publisher.publish("t", b"%d %d" % (self.number, self.published))
            self.published += 1
        self.publisher.flush_batch()

    async def log_on(self, member: ModelMember) -> None:
        if self.connection is not None:
            self.connection.close()
        if NAME in member.clients:
            member.clients[NAME].close()
        made = self.connection = member.clients[NAME] = ModelConnection(self, member)
        own = made.publishing.named_session = self.publisher.session
        told = member.dispatch.publisher_position(NAME, own, proven=False)
        assert told.sequence is not None
        await self.publisher.on_connected(cast(Any, made), told.sequence, told.session, told.stored)

    @property
    def unacknowledged(self) -> list[bytes]:
        found: list[bytes] = []
        for stored in self.publisher.store.pending():
            found += Batch.parse(stored.batch).bodies()
        return found


class ModelMember:
    """A member: the batches it has gathered, its position in the log, and its replies to clients."""

    def __init__(self) -> None:
        journal = cast(Journal, EmptyJournal())
        self.order = LogStateMachine(journal, 1, START_POSITION, HashChain(0, b""))
        self.gathered: list[PendingBatch[PendingAck]] = []
        self.own: dict[int, list[PendingBatch[PendingAck]]] = {}
        """Batches that this member appended, by entry."""
        self.stored: list[tuple[int, int, bytes]] = []
        self.applied = 0
        self.clients: dict[str, ModelConnection] = {}
        self.dispatch = self._dispatch(journal)
        quotas = SimpleNamespace(charge_publish=lambda connection, topics, count: 0)
        self.services: Any = SimpleNamespace(publishing=self.dispatch, quotas=quotas)

    def _dispatch(self, journal: Journal) -> Dispatcher:
        """A dispatch without subscribers, of a group without sync members."""

        def no_op(*_: object) -> None: ...

        clock = SimpleNamespace(now_ns=lambda: 1)
        facilities = SimpleNamespace(
            journal=journal, clock=clock, share=SimpleNamespace(on_live_traffic=no_op), spawn=no_op
        )
        frontier = SimpleNamespace(durable=0, stamped=0, shown=0, notify_waiters=no_op, advance=no_op)
        subscribed = SimpleNamespace(registry=SimpleNamespace(match=lambda batch: ()))
        confirmations = SimpleNamespace(
            on_local_durable=no_op,
            poll_links=no_op,
            confirmed_sequence=1 << 62,
            is_start_unconfirmed=False,
        )
        log = SimpleNamespace(append=self._append, is_full=False)
        made: Any = Dispatcher(
            cast(Any, facilities),
            cast(Any, frontier),
            cast(Any, frontier),
            cast(Any, SimpleNamespace(clients=self.clients)),
            cast(Any, subscribed),
            no_op,
            JournaledTopics(tcp_policy().instance),
            SyncDestinationFilter((), None),
            cast(Any, confirmations),
            cast(Any, lambda journal, outlet, clock: log),
        )
        return cast(Dispatcher, made)

    def _append(self, pending: PendingBatch[PendingAck]) -> None:
        """Append a batch as the group's log does."""
        assert isinstance(pending.batch.buf, bytearray)
        write_flags(pending.batch.buf, CLAIM if pending.claims else 0)
        pending.batch.stamp(origin=1, epoch=0, first_sequence=0, accepted_at=1)
        self.gathered.append(pending)

    def append(self, log: list[LogEntry]) -> None:
        if self.gathered:
            number = len(log) + 1
            self.own[number] = self.gathered
            content = b"".join(bytes(one.batch.buf) for one in self.gathered)
            log.append(LogEntry(number, 1, EntrySender("m", "r", number), content, 0))
            self.gathered = []

    def apply(self, log: list[LogEntry], most: int) -> None:
        """Apply at most `number` of the next entries."""
        entries = log[self.applied : self.applied + most]
        group: list[PendingBatch[PendingAck]] = []
        refused: list[tuple[PendingBatch[PendingAck], Refusal]] = []
        for entry in entries:
            own = self.own.pop(entry.number, None)
            for number, batch in enumerate(decode_batches(entry)):
                pending = own[number] if own is not None else PendingBatch[PendingAck](batch)
                fresh = self.order.apply_batch(entry, number, batch)
                if isinstance(fresh, Refusal):
                    refused.append((pending, fresh))
                    continue
                pending.batch = fresh
                group.append(pending)
                numbers = fresh.publisher_sequences().tolist()
                self.stored += zip([fresh.session] * fresh.count, numbers, fresh.bodies(), strict=True)
            self.order.mark_applied(entry)
        self.applied += len(entries)
        self._tell(group, refused)

    def _tell(
        self,
        group: Sequence[PendingBatch[PendingAck]],
        refused: Sequence[tuple[PendingBatch[PendingAck], Refusal]],
    ) -> None:
        if group:
            self.dispatch.on_durable(group, cast(Any, [None] * len(group)))
        for pending, why in refused:
            if why is Refusal.REPEATED:
                self.dispatch.on_duplicate(pending)
            else:
                self.dispatch.superseded(pending)


CLIENT, MEMBER = st.integers(0, CLIENTS - 1), st.integers(0, MEMBERS - 1)
STEP = st.one_of(
    st.tuples(st.just("publish"), CLIENT, st.integers(1, 3)),
    st.tuples(st.just("publish and append"), CLIENT, st.integers(1, 3)),
    st.tuples(st.just("log on"), CLIENT, MEMBER),
    st.tuples(st.just("lose"), CLIENT, st.just(0)),
    st.tuples(st.just("refuse"), CLIENT, st.just(0)),
    st.tuples(st.just("read"), CLIENT, st.just(0)),
    st.tuples(st.just("append"), MEMBER, st.just(0)),
    st.tuples(st.just("apply"), MEMBER, st.integers(1, 4)),
)


async def play(steps: list[tuple[str, int, int]]) -> None:
    log: list[LogEntry] = []
    members = [ModelMember() for _ in range(MEMBERS)]
    clients = [ModelPublisher(number) for number in range(CLIENTS)]
    for client in clients[:MEMBERS]:
        await client.log_on(members[client.number])
    for what, one, other in steps:
        if what == "publish":
            await clients[one].publish(other)
        elif what == "publish and append":
            await clients[one].publish(other)
            if (connection := clients[one].connection) is not None:
                connection.member.append(log)
        elif what == "log on":
            await clients[one].log_on(members[other])
        elif what == "append":
            members[one].append(log)
        elif what == "apply":
            members[one].apply(log, other)
        elif (connection := clients[one].connection) is not None:
            if what == "refuse":
                connection.refuses = True
            elif what == "read":
                await connection.read()
            else:
                connection.close()
        check(log, members, clients)

    async def settle() -> None:
        for client in clients:
            if client.connection is not None:
                await client.connection.read()
        for member in members:
            member.append(log)
        for member in members:
            while member.applied < len(log):
                member.apply(log, 4)

    await settle()
    # In the end each of them comes back, one after the other, and gets rid of everything, and of one more.
    for client in clients:
        await client.publish(1)
        for _ in range(3):
            await client.log_on(members[client.number % MEMBERS])
            await settle()
        assert client.unacknowledged == []
    assert members[0].stored == members[1].stored
    check(log, members, clients)


def check(log: list[LogEntry], members: list[ModelMember], clients: list[ModelPublisher]) -> None:
    most = max(members, key=lambda member: member.applied)
    bodies = [body for _, _, body in most.stored]
    numbers = [(session, number) for session, number, _ in most.stored]
    assert len(numbers) == len(set(numbers)), "a number of a session is one record"
    assert len(bodies) == len(set(bodies)), "twice"
    for client in clients:
        kept = client.unacknowledged
        for number in range(client.published):
            body = b"%d %d" % (client.number, number)
            told = body in client.refused
            assert body in bodies or body in kept or told, "acknowledged, and stored nowhere"


TWO_SESSIONS_AT_ONCE = [
    ("publish and append", 0, 1),
    ("apply", 1, 1),
    ("log on", 1, 1),
    ("publish and append", 1, 1),
    ("apply", 0, 2),
]
"""Member 0 applies its own client's batch, and then the batch of another member's client, in one go."""


@settings(max_examples=200, deadline=None)
@example(TWO_SESSIONS_AT_ONCE)
@given(st.lists(STEP, max_size=40))
def test_what_clients_of_one_name_are_told_is_stored_is_stored(steps: list[tuple[str, int, int]]) -> None:
    asyncio.run(play(steps))


@pytest.mark.parametrize("seen", ["before", "after"])
def test_a_session_that_lost_its_name_gets_nothing_more_into_the_log(seen: str) -> None:
    async def lost() -> None:
        log: list[LogEntry] = []
        a, b = ModelMember(), ModelMember()
        one, other = ModelPublisher(0), ModelPublisher(1)
        await one.log_on(a)
        await one.publish(3)
        a.append(log)
        b.apply(log, 1)
        await other.log_on(b)
        await other.publish(2)
        b.append(log)
        await one.publish(1)  # number 4, which the other has as well
        await one.publish(3)  # 5 to 7, of which some would be new by their numbers
        a.append(log)
        if seen == "before":
            a.apply(log, 2)
        for member in (a, b):
            while member.applied < len(log):
                member.apply(log, 4)
        assert a.stored == b.stored
        assert [number for _, number, _ in a.stored] == [1, 2, 3, 4, 5]
        assert one.connection is None and len(one.unacknowledged) == 4
        await one.log_on(b)
        b.append(log)
        for member in (a, b):
            member.apply(log, 4)
        assert one.unacknowledged == []
        assert [number for _, number, _ in a.stored] == list(range(1, 10))

    asyncio.run(lost())
