"""Client names and publisher sequences belong to the user who proved to own them.

On two transports of one broker, and on the members of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.client.publish_store import MemoryPublishStore
from broker_core.config import TransportSettings
from broker_core.connections.connection_view import ClientIdentity
from broker_core.connections.logons import LogonAuthenticator
from broker_core.connections.name_notices import MAX_NOTICES, NameNotices
from broker_core.connections.name_owners import ClientNameOwners
from broker_core.connections.roster import ConnectionTable
from tests.broker_core.access.making import entitlement, policy, user
from tests.broker_core.connections.test_logons import ONCE, refusal_code
from tests.support.brokers import running_broker
from tests.support.manual_clock import ManualClock

RESTRICTED = policy(user("maria"), entitlement("maria", publish=">", subscribe=">"))
BOTH = replace(
    RESTRICTED,
    transports=(*RESTRICTED.transports, TransportSettings("open", "tcp", 0, authentication="none")),
)


def address(broker: Broker, transport: str) -> str:
    port = next(one["port"] for one in broker.statistics.transports if one["name"] == transport)
    return f"tcp://127.0.0.1:{port}"


def bodies(broker: Broker, name: str) -> list[bytes]:
    journal = broker.engine.journal
    found = journal.read(1, 1 << 20, journal.durable_sequence)
    return [body for batch in found if batch.publisher_name == name for body in batch.bodies()]


async def raise_number(broker: Broker, number: int) -> None:
    """Publish under a name that no user owns, on the open transport, to raise its sequence."""
    store = MemoryPublishStore()
    store.last_sequence = number - 1
    async with AsyncClient(address(broker, "open"), "orders", publish_store=store) as anybody:
        await anybody.publish("t", b"raised")
        await anybody.flush()


async def test_numbers_of_nobody_in_particular_do_not_bind_the_names_owner(tmp_path: Path) -> None:
    async with running_broker(tmp_path, BOTH) as broker:
        await raise_number(broker, 1_000_000)
        async with AsyncClient(address(broker, "tcp"), "orders", token="maria", reconnect=ONCE) as owner:
            for number in range(3):
                await owner.publish("t", b"owner %d" % number)
            await owner.flush()
        assert bodies(broker, "orders") == [b"raised", b"owner 0", b"owner 1", b"owner 2"]
        assert broker.engine.dispatch.publisher_sequence("orders") == 3, "the owner's own count"
        assert await refusal_code(address(broker, "open"), "orders") == "name_taken"
    async with running_broker(tmp_path, BOTH) as broker:
        assert await refusal_code(address(broker, "open"), "orders") == "name_taken", "after a restart too"
        assert broker.engine.dispatch.publisher_sequence("orders") == 3
        async with AsyncClient(address(broker, "tcp"), "orders", token="maria", reconnect=ONCE) as owner:
            await owner.publish("t", b"owner 3")
            await owner.flush()
        assert bodies(broker, "orders")[-1] == b"owner 3"


async def test_a_number_is_stored_though_somebody_unproven_had_the_same_session_and_number(
    tmp_path: Path,
) -> None:
    """A subscriber to an owner's records knows the owner's session; the session is no proof of ownership."""
    async with running_broker(tmp_path, BOTH) as broker:
        for transport, token, body in (("open", None, b"guessed"), ("tcp", "maria", b"owner")):
            async with AsyncClient(
                address(broker, transport), "orders", token=token, reconnect=ONCE, publisher_session=7
            ) as client:
                await client.publish("t", body)
                await client.flush()
        assert bodies(broker, "orders") == [b"guessed", b"owner"]


# Members of a group.


@dataclass
class FakeConnection:
    """A connection as ownership notices see it."""

    clients: dict[str, FakeConnection]
    name: str
    user: str = ""
    logged_on_at: int = 0
    has_generated_name: bool = False
    closed: list[str] = field(default_factory=list)

    @property
    def identity(self) -> ClientIdentity:
        return ClientIdentity(self.user, bool(self.user), cast(Any, None))

    def close(self, code: str, message: str, fix: str = "") -> None:
        self.closed.append(code)
        if self.clients.get(self.name) is self:
            del self.clients[self.name]


class NoticeMember:
    """A member with its clients, its owners and its notices."""

    def __init__(self, directory: Path, run: str, now_ns: int) -> None:
        self.clients: dict[str, FakeConnection] = {}
        self.owners = ClientNameOwners(directory / f"{run}.owners")
        roster = SimpleNamespace(clients=self.clients, on_logged_on=None)
        logons = SimpleNamespace(owners=self.owners, owner_of=self.owners.owner_of)
        self.notices = NameNotices(
            cast(ConnectionTable, roster), cast(LogonAuthenticator, logons), ManualClock(now_ns).now_ns, run
        )

    def log_on(self, name: str, user: str = "") -> FakeConnection:
        made = self.clients[name] = FakeConnection(self.clients, name, user)
        if user:
            self.owners.claim(name, user)
        self.notices.on_logged_on(cast(Any, made), name)
        return made


def exchange(*sides: NoticeMember, lost: Callable[[bytes], bool] = lambda _: False) -> int:
    """Carry messages until there are none; how many there were."""
    number = 0
    while messages := [found for side in sides if (found := side.notices.next_message()) is not None]:
        for message in messages:
            number += 1
            assert number < 1_000, "they go on for ever"
            if not lost(message):
                for side in sides:
                    side.notices.receive(message)
    return number


def test_the_newest_logon_stays_whatever_the_members_clocks_say(tmp_path: Path) -> None:
    a, b = NoticeMember(tmp_path, "a", 10**18), NoticeMember(tmp_path, "b", 10**9)
    first = a.log_on("screen")
    exchange(a, b)
    second = b.log_on("screen")  # its clock is thirty years behind
    exchange(a, b)
    assert (first.closed, second.closed) == (["client_replaced"], [])


def test_two_that_log_on_at_once_leave_one_also_when_one_notice_is_lost(tmp_path: Path) -> None:
    a, b = NoticeMember(tmp_path, "a", 5), NoticeMember(tmp_path, "b", 5)
    one, other = a.log_on("screen"), b.log_on("screen")
    exchange(a, b)
    assert sorted([one.closed, other.closed]) == [[], ["client_replaced"]]
    c, d = NoticeMember(tmp_path, "c", 5), NoticeMember(tmp_path, "d", 5)
    one, other = c.log_on("screen"), d.log_on("screen")
    exchange(c, d, lost=lambda message: True)
    assert (one.closed, other.closed) == ([], [])
    c.notices.send_all()
    exchange(c, d)
    assert sorted([one.closed, other.closed]) == [[], ["client_replaced"]]


def test_a_client_that_moves_faster_than_its_notice_stays_connected(tmp_path: Path) -> None:
    """The first member's clock is ahead, so the client's second logon seems older than its first."""
    a, b = NoticeMember(tmp_path, "a", 10**18), NoticeMember(tmp_path, "b", 10**9)
    a.log_on("screen")
    del a.clients["screen"]  # it moves before the notice is sent
    moved = b.log_on("screen")
    exchange(a, b)
    assert moved.closed == []

    a, b = NoticeMember(tmp_path, "c", 10**18), NoticeMember(tmp_path, "d", 10**9)
    a.log_on("screen")
    under_way = a.notices.next_message()
    assert under_way is not None
    del a.clients["screen"]  # it moves while the notice is under way
    moved = b.log_on("screen")
    b.notices.receive(under_way)
    exchange(a, b)
    assert moved.closed == []


def test_an_answer_closes_only_the_client_that_it_answers(tmp_path: Path) -> None:
    a, b = NoticeMember(tmp_path, "a", 10**18), NoticeMember(tmp_path, "b", 10**9)
    b.log_on("screen")
    a.log_on("screen")
    a.notices.next_message()  # is lost
    notice = b.notices.next_message()
    assert notice is not None
    a.notices.receive(notice)
    answer = a.notices.next_message()
    assert answer is not None
    del a.clients["screen"]
    moved = b.log_on("screen")
    b.notices.receive(answer)
    exchange(a, b)
    assert moved.closed == []


def test_a_name_that_another_member_knows_as_a_users_is_not_anybodys(tmp_path: Path) -> None:
    a, b = NoticeMember(tmp_path, "a", 5), NoticeMember(tmp_path, "b", 5)
    owner = a.log_on("orders", "maria")
    exchange(a, b, lost=lambda message: True)
    for other in ("", "vera"):
        somebody = b.log_on("orders", other)
        exchange(a, b)
        assert (owner.closed, somebody.closed) == ([], ["name_taken"])
        assert (a.owners.owner_of("orders"), b.owners.owner_of("orders")) == ("maria", "maria")
    del a.clients["orders"]
    away = b.log_on("orders", "maria")
    exchange(a, b)
    assert away.closed == []


def test_links_and_clients_without_a_name_are_nobodys_business(tmp_path: Path) -> None:
    a, b = NoticeMember(tmp_path, "a", 5), NoticeMember(tmp_path, "b", 5)
    for name in ("link.ny", "site.ny"):
        one, other = a.log_on(name), b.log_on(name)
        assert exchange(a, b) == 0 and one.closed == other.closed == []


def test_twenty_thousand_logons_are_twenty_messages(tmp_path: Path) -> None:
    a, b = NoticeMember(tmp_path, "a", 5), NoticeMember(tmp_path, "b", 5)
    for number in range(20_000):
        a.log_on(f"client-{number}")
    assert exchange(a, b) == 20_000 // MAX_NOTICES


def test_what_is_no_notice_is_passed_over(tmp_path: Path) -> None:
    a = NoticeMember(tmp_path, "a", 5)
    one = a.log_on("screen")
    for content in (b"[", b"[]", b'["b"]', b'["b",[["screen"]]]', msgspec.json.encode(["b", 3])):
        a.notices.receive(content)
    assert one.closed == []
