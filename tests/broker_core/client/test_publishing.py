"""Publishing through a connection: gathering, numbering, bounds, acknowledgements, errors and lost
connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from broker_core.batch import MAX_DICTIONARY, Buffer, build_single_topic_batch
from broker_core.client import AsyncClient, FilePublishStore, MemoryPublishStore, ReconnectPolicy, Rejection
from broker_core.client.messages import MAX_BODY
from broker_core.errors import ClientError, OperatorError
from broker_core.protocols import commands
from tests.broker_core.client.fake_broker import FakeBroker

pytestmark = pytest.mark.asyncio
QUICK = ReconnectPolicy(first_delay=0.001, longest_delay=0.01)


def client(broker: FakeBroker, name: str = "p", **options: object) -> AsyncClient:
    return AsyncClient(broker.address, name, reconnect=QUICK, **options)  # type: ignore[arg-type]


async def test_what_is_published_in_one_turn_is_one_batch(broker: FakeBroker) -> None:
    async with client(broker) as publisher:
        for number in range(100):
            await publisher.publish("a.b", {"n": number})
        await publisher.flush()
        await publisher.publish("a.b", "next turn")
        await publisher.flush()
    assert [batch.count for batch in broker.arrived] == [100, 1]
    assert broker.bodies[:2] == [b'{"n":0}', b'{"n":1}']
    assert broker.arrived[0].first_publisher_sequence == 1
    assert broker.arrived[1].first_publisher_sequence == 101


async def test_topics_of_one_turn_share_a_batch_in_the_order_published(broker: FakeBroker) -> None:
    async with client(broker) as publisher:
        for number in range(6):
            await publisher.publish("a" if number % 2 else "b", str(number))
        await publisher.flush()
    assert len(broker.arrived) == 1
    assert [(record.topic, record.body) for record in broker.arrived[0].records()] == [
        ("b", b"0"),
        ("a", b"1"),
        ("b", b"2"),
        ("a", b"3"),
        ("b", b"4"),
        ("a", b"5"),
    ]


async def test_more_topics_than_a_dictionary_holds_make_more_batches(broker: FakeBroker) -> None:
    async with client(broker) as publisher:
        for number in range(MAX_DICTIONARY + 10):
            await publisher.publish(f"t.{number}", b"")
        await publisher.flush()
    assert [batch.count for batch in broker.arrived] == [MAX_DICTIONARY - 1, 11]


async def test_a_turn_is_cut_when_the_batch_is_full_and_the_loop_breathes(broker: FakeBroker) -> None:
    async with client(broker, batch_bytes=1_000) as publisher:
        other = 0

        async def others() -> None:
            nonlocal other
            while True:
                other += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        for _ in range(1_000):
            await publisher.publish("a", b"x" * 84)  # with its row 100 bytes: ten to a batch
        task.cancel()
        await publisher.flush()
    assert {batch.count for batch in broker.arrived} == {10}
    assert other >= 99


async def test_few_messages_of_publish_many_gather_with_the_others_of_the_turn_in_order(
    broker: FakeBroker,
) -> None:
    async with client(broker) as publisher:
        await publisher.publish("a", b"first")
        await publisher.publish_many("a", [b"1", "2", {"x": 3}])
        await publisher.publish_many("a", [])
        await publisher.flush()
    assert [batch.count for batch in broker.arrived] == [4]
    assert broker.bodies == [b"first", b"1", b"2", b'{"x":3}']


async def test_few_messages_at_a_time_make_one_batch_and_one_write_of_a_turn(broker: FakeBroker) -> None:
    async with client(broker) as publisher:
        link = publisher._connector.link
        assert link is not None
        writes, send = [], link.send

        def count(parts: Sequence[Buffer]) -> None:
            writes.append(len(parts))
            send(parts)

        link.send = count  # type: ignore[method-assign]
        for number in range(50):
            await publisher.publish_many("a", [str(number)] * 2)
        await publisher.flush()
    assert writes[0] == 2  # a header and a batch
    assert [batch.count for batch in broker.arrived] == [100]
    assert broker.bodies == [str(number).encode() for number in range(50) for _ in range(2)]


async def test_publish_many_of_more_than_a_frame_holds_is_cut(broker: FakeBroker) -> None:
    async with client(broker) as publisher:
        await publisher.publish_many("a", [b"x" * 200_000] * 5)
        await publisher.publish_many("a", [b""] * 70_000)
        await publisher.flush()
    assert [batch.count for batch in broker.arrived[:3]] == [2, 2, 1]
    assert sum(batch.count for batch in broker.arrived[3:]) == 70_000


async def test_a_message_over_the_limit_is_refused_alone(broker: FakeBroker) -> None:
    async with client(broker) as publisher:
        await publisher.publish("a", b"before")
        for publish in (publisher.publish, lambda topic, body: publisher.publish_many(topic, [body])):
            with pytest.raises(ClientError) as caught:
                await publish("a", b"x" * (MAX_BODY + 1))
            assert caught.value.code == "frame_too_large"
        await publisher.publish("a", b"after")
        await publisher.flush()
    assert broker.bodies == [b"before", b"after"]


async def test_a_topic_that_cannot_be_is_refused_at_once(broker: FakeBroker) -> None:
    async with client(broker) as publisher:
        for topic in ("a b", "", "$SLUICE.clients"):
            with pytest.raises(ClientError) as caught:
                await publisher.publish(topic, b"x")
            assert caught.value.code == "bad_topic"


async def test_a_conflated_ack_acknowledges_everything_before_it(broker: FakeBroker) -> None:
    async with client(broker) as publisher:
        broker.hold_acks = True
        for _ in range(5):
            await publisher.publish_many("a", [b"x"] * 10)
        flushed = asyncio.create_task(publisher.flush())
        await broker.until(lambda: any(isinstance(command, commands.Flush) for command in broker.commands))
        assert publisher.unacknowledged_bytes > 0
        assert not flushed.done()
        broker.release()
        await flushed
        assert publisher.unacknowledged_bytes == 0


async def test_a_publisher_waits_while_too_much_is_in_flight(broker: FakeBroker) -> None:
    async with client(broker, publish_store=MemoryPublishStore(limit=10_000), batch_bytes=1_000) as publisher:
        broker.hold_acks = True
        sent = 0

        async def publish() -> None:
            nonlocal sent
            for _ in range(100):
                await publisher.publish("a", b"x" * 984)
                sent += 1

        task = asyncio.create_task(publish())
        await broker.until(lambda: len(broker.arrived) >= 9)
        for _ in range(20):
            await asyncio.sleep(0)
        assert sent < 12
        assert publisher.unacknowledged_bytes < 10_000 + 2_000
        broker.hold_acks = False
        broker.release()
        await task
        await publisher.flush()
    assert len(broker.bodies) == 100


async def test_what_no_journal_keeps_is_acknowledged_as_processed(broker: FakeBroker) -> None:
    async with client(broker) as publisher:
        broker.hold_acks = True
        await publisher.publish("kept", b"1")
        await asyncio.sleep(0)
        await publisher.publish("scratch.x", b"2")
        waiting = asyncio.create_task(publisher.flush())
        await broker.until(lambda: len(broker.arrived) == 2)
        broker.release()
        await waiting
        assert publisher.unacknowledged_bytes == 0


async def test_a_refused_publish_is_reported_dropped_and_raised_by_flush(broker: FakeBroker) -> None:
    told: list[Rejection] = []
    async with client(broker, on_rejection=told.append) as publisher:
        broker.refuse_next = ClientError("bad_topic", "Not here.", "Elsewhere.")
        await publisher.publish("a", b"refused")
        with pytest.raises(ClientError) as caught:
            await publisher.flush()
        assert caught.value.code == "bad_topic"
        assert [(rejection.first, rejection.last) for rejection in told] == [(1, 1)]
        await publisher.publish("a", b"taken")
        await publisher.flush()
        assert publisher.unacknowledged_bytes == 0
    assert broker.bodies == [b"taken"]


async def test_after_a_lost_connection_what_was_not_acknowledged_is_published_again_once(
    broker: FakeBroker,
) -> None:
    async with client(broker) as publisher:
        await publisher.publish("a", b"1")
        await publisher.flush()
        broker.silent = True  # takes and forgets: a crash before the disk
        await publisher.publish("a", b"2")
        await broker.until(lambda: len(broker.arrived) == 2)
        broker.silent, broker.hold_acks = False, True
        await publisher.publish("a", b"3")
        await broker.until(lambda: len(broker.log) == 2)
        broker.log.pop()
        broker.publishers["p"] = 1
        broker.drop()
        broker.hold_acks = False
        await publisher.publish("a", b"4")
        await publisher.flush()
        assert publisher.connections == 2
    assert broker.bodies == [b"1", b"2", b"3", b"4"]


async def test_what_the_broker_has_is_not_sent_again(broker: FakeBroker) -> None:
    async with client(broker) as publisher:
        broker.hold_acks = True
        await publisher.publish("a", b"1")
        await broker.until(lambda: len(broker.log) == 1)
        broker.drop()
        broker.hold_acks = False
        await publisher.flush()
    assert len(broker.arrived) == 1


async def test_a_flush_under_way_survives_a_lost_connection(broker: FakeBroker) -> None:
    async with client(broker) as publisher:
        broker.silent = True
        await publisher.publish("a", b"1")
        flushed = asyncio.create_task(publisher.flush())
        await broker.until(lambda: len(broker.arrived) == 1)
        broker.silent = False
        broker.drop()
        await flushed
    assert broker.bodies == [b"1"]


async def test_the_file_store_publishes_in_the_next_process_what_this_one_could_not(
    broker: FakeBroker, tmp_path: Path
) -> None:
    crashed = client(broker, publish_store=FilePublishStore(tmp_path / "s"))
    await crashed.start()
    await crashed.publish("a", b"acknowledged")
    await crashed.flush()
    broker.silent = True
    await crashed.publish_many("a", [b"lost-1", b"lost-2"])
    await broker.until(lambda: len(broker.arrived) == 2)
    await crashed.publish_many("a", [b"torn"])
    await broker.until(lambda: len(broker.arrived) == 3)
    await crashed.close()
    raw = (tmp_path / "s").read_bytes()
    (tmp_path / "s").write_bytes(raw[:-10])  # the last write didn't reach the file
    broker.silent = False
    store = FilePublishStore(tmp_path / "s")
    assert store.set_aside_bytes > 0
    async with client(broker, publish_store=store) as publisher:
        await publisher.flush()
        await publisher.publish("a", b"new")
        await publisher.flush()
    assert broker.bodies == [b"acknowledged", b"lost-1", b"lost-2", b"new"]
    assert [batch.first_publisher_sequence for batch in broker.log] == [1, 2, 4]


async def test_a_restart_without_a_store_goes_on_with_the_brokers_number(broker: FakeBroker) -> None:
    for body in (b"1", b"2"):
        async with client(broker) as publisher:
            await publisher.publish("a", body)
            await publisher.flush()
    assert broker.bodies == [b"1", b"2"]


async def test_a_store_of_another_client_is_refused(broker: FakeBroker, tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "s")
    broker.silent = True
    store.add(1, 1, build_single_topic_batch("somebody", "a", [b"x"], 1))
    with pytest.raises(OperatorError) as caught:
        await client(broker, publish_store=store).start()
    assert caught.value.code == "store_of_another_client"


async def test_a_store_that_cannot_be_written_is_raised_not_swallowed(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FilePublishStore(tmp_path / "s")

    def full(first: int, last: int, batch: object) -> None:
        raise OperatorError("store_failed", "No room.", "Make some.")

    async with client(broker, publish_store=store) as publisher:
        monkeypatch.setattr(store, "add", full)
        await publisher.publish("a", b"x")
        await asyncio.sleep(0)
        with pytest.raises(OperatorError) as caught:
            await publisher.flush()
        assert caught.value.code == "store_failed"


async def test_a_closed_client_says_so(broker: FakeBroker) -> None:
    publisher = client(broker)
    async with publisher:
        pass
    with pytest.raises(OperatorError) as caught:
        await publisher.publish("a", b"x")
    assert caught.value.code == "client_closed"


async def test_what_is_taken_while_the_client_closes_is_in_the_store(
    broker: FakeBroker, tmp_path: Path
) -> None:
    path, taken, unheard = tmp_path / "unsent", 0, list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, said: unheard.append(said))
    publisher = await client(broker, publish_store=FilePublishStore(path)).start()

    async def publish_on() -> None:
        nonlocal taken
        while True:
            await publisher.publish("a", str(taken + 1))
            taken += 1
            if taken % 3 == 0:
                await asyncio.sleep(0)

    publishing = asyncio.create_task(publish_on())
    while taken < 100:
        await asyncio.sleep(0)
    await publisher.close()
    async with asyncio.timeout(20):
        with pytest.raises(OperatorError, match="client_closed"):
            await publishing
    await asyncio.sleep(0)
    assert unheard == []
    store = FilePublishStore(path)
    assert store.last_sequence >= taken > 100
    store.close()
