"""Several addresses of a client: two transports of one broker, and one unreachable address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.broker import Broker
from broker_core.client import EPOCH, AsyncClient, FileBookmarkStore, ReconnectPolicy, Subscription
from broker_core.client.connector import AddressRotation
from broker_core.client.publish_store import MemoryPublishStore
from broker_core.config import PolicyDocument, TransportSettings
from broker_core.errors import ClientError, OperatorError
from broker_core.protocols import commands
from tests.broker_core.client.fake_broker import FakeBroker
from tests.support.brokers import running_broker, tcp_policy, until

OTHER_SESSION = 7
QUICK = ReconnectPolicy(first_delay=0.001, longest_delay=0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class TwoTransportBroker:
    """A broker with two transports that tests close and open.

    `addresses` begin with an unreachable one.
    """

    def __init__(self, broker: Broker, policy: PolicyDocument) -> None:
        self.broker = broker
        self.policy = policy
        self.addresses = [
            f"tcp://127.0.0.1:{port}" for port in (free_port(), *(t.port for t in policy.transports))
        ]

    async def only(self, *names: str) -> None:
        """Have just these transports open."""
        self.policy = replace(
            self.policy,
            revision=self.policy.revision + 1,
            transports=tuple(
                replace(transport, enabled=transport.name in names) for transport in self.policy.transports
            ),
        )
        await self.broker.apply(self.policy)

    def transport_of(self, name: str) -> str:
        """Return the transport by which a client is connected, or ""."""
        connection = self.broker.engine.roster.clients.get(name)
        return connection.transport if connection is not None else ""


@asynccontextmanager
async def two_transports(home: Path) -> AsyncIterator[TwoTransportBroker]:
    transports = tuple(TransportSettings(name, "tcp", free_port()) for name in ("a", "b"))
    policy = replace(tcp_policy(), transports=transports)
    async with running_broker(home, policy) as broker:
        yield TwoTransportBroker(broker, policy)


async def take(subscription: Subscription, number: int) -> list[int]:
    """Return the next `number` messages, marked as processed."""
    found: list[int] = []
    async with asyncio.timeout(20):
        async for message in subscription:
            found.append(message.data)
            subscription.done(message)
            if len(found) == number:
                break
    return found


async def test_a_client_goes_on_by_another_transport_and_misses_and_repeats_nothing(tmp_path: Path) -> None:
    async with two_transports(tmp_path / "home") as transports:
        marks = FileBookmarkStore(tmp_path / "marks")
        subscriber = AsyncClient(transports.addresses, "s", reconnect=QUICK, bookmark_store=marks)
        publisher = AsyncClient(transports.addresses, "p", reconnect=QUICK)
        async with subscriber, publisher:
            subscription = await subscriber.subscribe("numbers", bookmark="MOST_RECENT")
            expected = 0
            for open_one in ("a", "b", "a", "b"):
                await transports.only(open_one)
                await publisher.publish_many("numbers", list(range(expected, expected + 100)))
                await publisher.flush()
                assert await take(subscription, 100) == list(range(expected, expected + 100))
                expected += 100
                assert transports.transport_of("s") == transports.transport_of("p") == open_one
            assert (subscriber.connections, publisher.connections) == (4, 4)
            assert not subscription.gaps


async def test_after_the_first_address_returns_the_client_stays_where_it_is(tmp_path: Path) -> None:
    async with two_transports(tmp_path / "home") as transports:
        async with AsyncClient(transports.addresses, "s", reconnect=QUICK) as client:
            await transports.only("b")
            await until(lambda: transports.transport_of("s") == "b")
            subscription = await client.subscribe("numbers", bookmark=EPOCH)
            connections = client.connections
            await transports.only("a", "b")
            await client.publish("numbers", 1)
            await client.flush()
            assert await take(subscription, 1) == [1]
            assert (transports.transport_of("s"), client.connections) == ("b", connections)


async def test_while_no_address_answers_what_is_published_waits_and_arrives_in_order(tmp_path: Path) -> None:
    async with two_transports(tmp_path / "home") as transports:
        async with AsyncClient(transports.addresses, "s", reconnect=QUICK) as client:
            subscription = await client.subscribe("numbers", bookmark=EPOCH)
            await transports.only()
            await until(lambda: not client.connected)
            await client.publish_many("numbers", [1, 2, 3])
            flushing = asyncio.create_task(client.flush())
            await asyncio.sleep(0)
            await transports.only("b")
            async with asyncio.timeout(20):
                await flushing
            assert await take(subscription, 3) == [1, 2, 3]


@pytest.mark.parametrize("limit", [0.0, 0.01])
async def test_each_address_is_tried_before_the_client_gives_up(broker: FakeBroker, limit: float) -> None:
    policy = ReconnectPolicy(first_delay=0.001, longest_delay=0.001, first_connect_timeout=limit)
    dead = [f"tcp://127.0.0.1:{free_port()}" for _ in range(3)]
    async with AsyncClient([*dead, broker.address], "s", reconnect=policy) as client:
        assert client.connected
    with pytest.raises(OperatorError) as caught:
        await AsyncClient(dead, "s", reconnect=policy).start()
    assert caught.value.code == "broker_away"


async def test_an_address_that_takes_connections_and_says_nothing_is_left_for_the_next(
    broker: FakeBroker,
) -> None:
    silent = FakeBroker()
    await silent.start()
    silent.silent = True
    policy = ReconnectPolicy(first_delay=0.001, longest_delay=0.001, connect_timeout=0.05, logon_timeout=0.05)
    try:
        async with AsyncClient([silent.address, broker.address], "s", reconnect=policy) as client:
            assert client.connected
    finally:
        await silent.stop()


async def test_another_instance_that_would_take_new_messages_for_repeats_is_not_used(
    broker: FakeBroker,
) -> None:
    other = FakeBroker("fake-2")
    await other.start()
    other.publishers["p"] = 50  # it knows fifty messages of a client of this name, other ones
    try:
        async with AsyncClient([broker.address, other.address], "p", reconnect=QUICK) as client:
            await client.publish("a", b"1")
            await client.flush()
            broker.silent = True
            await client.publish("a", b"2")
            await broker.until(lambda: len(broker.arrived) == 2)
            broker.drop()
            broker.silent = False
            await client.flush()  # it tried the other one, and came back here
            assert (broker.bodies, other.bodies) == ([b"1", b"2"], [])
            assert client.instance == "fake-1"
            assert any(isinstance(command, commands.Logon) for command in other.commands)
    finally:
        await other.stop()


@pytest.mark.parametrize("known", [0, 2, 50])
async def test_what_is_published_where_the_broker_is_unsure_goes_to_the_next_address_and_none_is_left_out(
    broker: FakeBroker, known: int
) -> None:
    """Its numbers are another's already there: of a client that was new, and numbered from 1."""
    other = FakeBroker()
    await other.start()
    broker.unsure, other.publishers["p"], other.sessions["p"] = True, known, OTHER_SESSION
    try:
        async with (
            asyncio.timeout(30),
            AsyncClient([broker.address, other.address], "p", reconnect=QUICK) as client,
        ):
            assert client.connected
            flushes = []
            for body in (b"1", b"2", b"3"):
                await client.publish_many("a", [body] * 2)
                flushes.append(asyncio.create_task(client.flush()))
                await asyncio.sleep(0)
            await asyncio.gather(*flushes)
            assert other.bodies == [b"1", b"1", b"2", b"2", b"3", b"3"]
            assert broker.arrived == []
            numbers = [int(n) for batch in other.log for n in batch.publisher_sequences()]
            assert numbers == sorted(set(numbers)) and numbers[0] > known
    finally:
        await other.stop()


async def test_a_reader_stays_where_the_broker_is_unsure(broker: FakeBroker) -> None:
    broker.unsure = True
    broker.store_batch(Batch.parse(build_single_topic_batch("q", "a", [b"1"], 1)))
    async with asyncio.timeout(30), AsyncClient(broker.address, "r", reconnect=QUICK) as client:
        assert (await anext(aiter(await client.subscribe("a", bookmark=EPOCH)))).body == b"1"
        assert client.connections == 1


async def test_a_client_that_needs_its_sequence_goes_to_the_next_address(broker: FakeBroker) -> None:
    other = FakeBroker()
    await other.start()
    broker.unsure = True
    try:
        once = ReconnectPolicy(enabled=False)
        async with (
            asyncio.timeout(30),
            AsyncClient([broker.address, other.address], "p", reconnect=once, needs_sequence=True),
        ):
            assert len(other.peers) == 1
    finally:
        await other.stop()


async def test_a_start_with_unsent_messages_ends_in_time_where_all_members_are_cut_off(
    broker: FakeBroker,
) -> None:
    broker.unsure = True
    policy = ReconnectPolicy(first_delay=0.01, longest_delay=0.02, first_connect_timeout=0.2)
    store = MemoryPublishStore()
    store.add(1, 1, build_single_topic_batch("p", "t", [b"1"], 1, 5))
    client = AsyncClient(broker.address, "p", publish_store=store, reconnect=policy)
    with pytest.raises(ClientError) as caught:
        await asyncio.wait_for(client.start(), 20)
    assert (caught.value.code, client.connections, store.messages) == ("behind", 0, 1)


async def test_a_broker_that_is_behind_is_left_at_once_and_met_with_its_delay_after_a_round(
    broker: FakeBroker,
) -> None:
    other = FakeBroker()
    await other.start()
    broker.refuse_logon = other.refuse_logon = ClientError("behind", "It is cut off.")
    policy = ReconnectPolicy(first_delay=0.001, longest_delay=0.002, first_connect_timeout=0.1)
    try:
        with pytest.raises(ClientError) as caught:
            await AsyncClient([broker.address, other.address], "p", reconnect=policy).start()
        assert caught.value.code == "behind"
        assert broker.commands and other.commands
    finally:
        await other.stop()


async def test_an_answer_that_speaks_of_more_than_was_numbered_lets_no_message_be_left_out(
    broker: FakeBroker,
) -> None:
    """The broker reports sequences of another publisher of this name; they don't acknowledge this client's
    messages.
    """
    async with AsyncClient(broker.address, "p", reconnect=QUICK) as client:
        await client.publish("a", b"1")
        await client.flush()
        broker.silent = True
        await client.publish("a", b"2")
        await broker.until(lambda: len(broker.arrived) == 2)
        broker.publishers["p"], broker.sessions["p"], broker.silent = 9, OTHER_SESSION, False
        broker.drop()
        await client.flush()
        assert broker.bodies == [b"1", b"2"]
        assert broker.log[-1].first_publisher_sequence == 10


def test_each_address_has_its_turn_and_only_a_whole_round_grows_the_delay() -> None:
    turns = AddressRotation(3, ReconnectPolicy(first_delay=1, longest_delay=100, jitter=0))
    assert [(turns.current, turns.on_failure(), turns.is_round_complete) for _ in range(7)] == [
        (0, 1, False),
        (1, 1, False),
        (2, 1, True),
        (0, 2, True),
        (1, 2, True),
        (2, 2, True),
        (0, 4, True),
    ]
    turns.record_connection("broker_away", 101, had_progress=True)
    assert (turns.current, turns.is_round_complete, turns.on_failure()) == (1, False, 1)


@pytest.mark.parametrize(
    ("codes", "up_s", "had_progress", "delays"),
    [
        (["heartbeat_timeout"] * 5, 21, True, [1, 2, 4, 8, 8]),
        (["broker_silent"] * 3, 21, False, [1, 2, 4]),
        (["heartbeat_timeout"] * 3, 49, True, [1, 1, 1]),
        (["broker_away"] * 3, 21, False, [1, 2, 4]),
        (["broker_away"] * 3, 21, True, [1, 1, 1]),
        (["broker_silent", "broker_away", "broker_silent"], 21, False, [1, 1, 1]),
        (["broker_silent", "broker_away", "broker_silent"], 7, True, [1, 2, 4]),
    ],
)
def test_delays_grow_while_connections_end_for_the_same_reason(
    codes: list[str], up_s: float, had_progress: bool, delays: list[float]
) -> None:
    turns, found = AddressRotation(1, ReconnectPolicy(first_delay=1, longest_delay=8, jitter=0)), []
    for code in codes:
        turns.record_connection(code, up_s, had_progress=had_progress)
        found.append(turns.on_failure())
    assert found == delays
