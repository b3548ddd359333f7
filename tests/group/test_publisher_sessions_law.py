"""The law of publisher sessions: whatever clients of one name do on whatever members, what they are told is
stored is stored, once.

The clients are the library's publishers, with their stores; the members are the order that each of them
makes of the log. What an example
decides: who logs on where, and with how old an answer; when what a member gathered gets into the log, and
when members apply it; which batches a member refuses, and whether their client reads that.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.batch import CLAIM, Batch, Buffer, stamp, write_flags
from broker_core.client.publish_store import MemoryPublishStore
from broker_core.client.publisher import Publisher, Rejection
from broker_core.group.chain import Chain
from broker_core.group.order import START, Order, batches_of
from broker_core.group.ports import Entry, Sender
from broker_core.journal.journal import Journal
from broker_core.journal.publishers import Publishers, Refusal, number_of
from broker_core.protocols.commands import Skip
from broker_core.protocols.replies import Ack, Error

NAME, CLIENTS, MEMBERS = "feed", 3, 2


class EmptyJournal:
    """The journal that an order begins with."""

    origin, next_sequence, last_at = 1, 1, 0

    def __init__(self) -> None:
        self.publishers = Publishers()


@dataclass
class Connection:
    """A client's connection to a member, as that member knows it. Satisfies what a publisher needs of a
    link."""

    client: Client
    member: Member
    claimed: bool = False
    closed: bool = False
    paused: bool = False
    refuses: bool = False
    """Whether the member refuses the next batch."""
    refused_upto: int = 0
    unread: list[Error] = field(default_factory=list)

    def send(self, parts: Any) -> None:
        for part in parts:
            if len(part) > 64:
                self.publish(part)

    def send_command(self, command: object) -> None:
        if isinstance(command, Skip):
            assert command.sequence == self.refused_upto, "every refusal is read before"
            self.refused_upto = 0

    async def read(self) -> None:
        """Hand the refusals to the client, which may send what is behind them."""
        while self.unread and not self.closed:
            self.client.publisher.on_error(self.unread.pop(0))
            await asyncio.sleep(0)

    def publish(self, sent: Buffer) -> None:
        if self.closed:
            return
        content = bytearray(sent)
        if self.refuses or self.refused_upto:
            batch = Batch.parse(content)
            first, last = batch.first_publisher_sequence, batch.last_publisher_sequence
            code = "not_entitled" if self.refuses else "refused_before"
            self.refuses, self.refused_upto = False, last
            self.unread.append(Error(code=code, message="", of="publish", first=first, sequence=last))
            return
        write_flags(content, 0 if self.claimed else CLAIM)
        stamp(content, origin=1, epoch=0, first_sequence=0, accepted_at=1)
        self.claimed = True
        self.member.gathered.append((content, self))

    def close(self) -> None:
        self.closed = True
        if self.client.connection is self:
            self.client.connection = None
            self.client.publisher.disconnected()


@dataclass
class Client:
    """A publisher of the client library; every message that it published is another one."""

    number: int
    publisher: Publisher = field(init=False)
    connection: Connection | None = None
    published: int = 0
    refused: list[bytes] = field(default_factory=list)
    """Messages that the application was told are refused."""

    def __post_init__(self) -> None:
        self.publisher = Publisher(NAME, MemoryPublishStore(), 1 << 16, self.reject)

    def reject(self, rejection: Rejection) -> None:
        self.refused += [body for _, body in rejection.messages]

    async def publish(self, count: int) -> None:
        for _ in range(count):
            await self.publisher.publish("t", b"%d %d" % (self.number, self.published))
            self.published += 1
        self.publisher.send_gathered()

    async def log_on(self, member: Member) -> None:
        if self.connection is not None:
            self.connection.close()
        sessions = member.publishers.get(NAME, ())
        made = self.connection = Connection(self, member)
        holder = sessions[0] if sessions else None
        await self.publisher.connected(
            cast(Any, made),
            holder.number if holder is not None else 0,
            holder.session if holder is not None else None,
            number_of(sessions, self.publisher.session),
        )

    @property
    def unacknowledged(self) -> list[bytes]:
        found: list[bytes] = []
        for stored in self.publisher.store.pending():
            found += Batch.parse(stored.batch).bodies()
        return found


class Member:
    """A member: what it has gathered, how far it has applied the log, and what it would tell a client."""

    def __init__(self) -> None:
        self.order = Order(cast(Journal, EmptyJournal()), 1, START, Chain(0, b""))
        self.gathered: list[tuple[bytearray, Connection]] = []
        self.owners: dict[int, list[Connection]] = {}
        self.stored: list[tuple[int, int, bytes]] = []
        self.applied = 0
        self.publishers = Publishers()

    def append(self, log: list[Entry]) -> None:
        if self.gathered:
            number = len(log) + 1
            self.owners[number] = [connection for _, connection in self.gathered]
            content = b"".join(content for content, _ in self.gathered)
            log.append(Entry(number, 1, Sender("m", "r", number), content, 0))
            self.gathered = []

    def apply(self, log: list[Entry]) -> None:
        """The next entry."""
        if self.applied == len(log):
            return
        entry = log[self.applied]
        owners = self.owners.get(entry.number)
        for number, batch in enumerate(batches_of(entry)):
            last, session = batch.last_publisher_sequence, batch.session
            fresh = self.order.take(entry, number, batch)
            owner = owners[number] if owners is not None else None
            if isinstance(fresh, Batch):
                self.publishers.note(NAME, session, last)
                numbers = fresh.publisher_sequences().tolist()
                self.stored += zip([session] * fresh.count, numbers, fresh.bodies(), strict=True)
            if owner is None:
                continue
            if fresh is Refusal.SUPERSEDED:
                owner.close()
            elif not owner.closed:
                owner.client.publisher.on_ack(Ack(ack="persisted", sequence=last))
        self.order.passed(entry)
        self.applied += 1


CLIENT, MEMBER = st.integers(0, CLIENTS - 1), st.integers(0, MEMBERS - 1)
STEP = st.one_of(
    st.tuples(st.just("publish"), CLIENT, st.integers(1, 3)),
    st.tuples(st.just("log on"), CLIENT, MEMBER),
    st.tuples(st.just("lose"), CLIENT, st.just(0)),
    st.tuples(st.just("refuse"), CLIENT, st.just(0)),
    st.tuples(st.just("read"), CLIENT, st.just(0)),
    st.tuples(st.just("append"), MEMBER, st.just(0)),
    st.tuples(st.just("apply"), MEMBER, st.just(0)),
)


async def play(steps: list[tuple[str, int, int]]) -> None:
    log: list[Entry] = []
    members = [Member() for _ in range(MEMBERS)]
    clients = [Client(number) for number in range(CLIENTS)]
    for what, one, other in steps:
        if what == "publish":
            await clients[one].publish(other)
        elif what == "log on":
            await clients[one].log_on(members[other])
        elif what == "append":
            members[one].append(log)
        elif what == "apply":
            members[one].apply(log)
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
                member.apply(log)

    await settle()
    # In the end each of them comes back, one after the other, and gets rid of everything.
    for client in clients:
        for _ in range(3):
            await client.log_on(members[client.number % MEMBERS])
            await settle()
        assert client.unacknowledged == []
    assert members[0].stored == members[1].stored
    check(log, members, clients)


def check(log: list[Entry], members: list[Member], clients: list[Client]) -> None:
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


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_what_clients_of_one_name_are_told_is_stored_is_stored(steps: list[tuple[str, int, int]]) -> None:
    asyncio.run(play(steps))


@pytest.mark.parametrize("seen", ["before", "after"])
def test_a_session_that_lost_its_name_gets_nothing_more_into_the_log(seen: str) -> None:
    async def lost() -> None:
        log: list[Entry] = []
        a, b = Member(), Member()
        one, other = Client(0), Client(1)
        await one.log_on(a)
        await one.publish(3)
        a.append(log)
        b.apply(log)
        await other.log_on(b)
        await other.publish(2)
        b.append(log)
        await one.publish(1)  # number 4, which the other has as well
        await one.publish(3)  # 5 to 7, of which some would be new by their numbers
        a.append(log)
        if seen == "before":
            a.apply(log)
            a.apply(log)
        for member in (a, b):
            while member.applied < len(log):
                member.apply(log)
        assert a.stored == b.stored
        assert [number for _, number, _ in a.stored] == [1, 2, 3, 4, 5]
        assert one.connection is None and len(one.unacknowledged) == 4
        await one.log_on(b)
        b.append(log)
        for member in (a, b):
            member.apply(log)
        assert one.unacknowledged == []
        assert [number for _, number, _ in a.stored] == list(range(1, 10))

    asyncio.run(lost())
