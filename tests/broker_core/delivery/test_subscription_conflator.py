"""Conflated subscriptions through a real broker: in a replay, live, across a pause, and their memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson

from broker_core.batch import Batch
from broker_core.broker import Broker
from tests.support.brokers import running_broker, until
from tests.support.raw import RawClient
from tests.support.recording_client import RecordingClient
from tests.support.rules import policy_with

INTERVAL = 100_000_000
"""ns; "100ms" below."""


async def prices(writer: RawClient, first: int, number: int, keys: int = 5) -> None:
    await writer.publish("fx", [orjson.dumps({"id": n % keys, "n": n}) for n in range(first, first + number)])


def last_per_key_and_interval(broker: Broker) -> list[tuple[int, bytes]]:
    """Return the last record per key and interval, computed from the whole log."""
    journal = broker.engine.journal
    expected: list[tuple[int, bytes]] = []
    window, last = -1, dict[int, tuple[int, bytes]]()
    batches: list[Batch] = []
    while (start := batches[-1].last_sequence + 1 if batches else 1) <= broker.engine.frontier.durable:
        batches += journal.read(start, 1 << 20, broker.engine.frontier.durable)
    for batch in batches:
        if batch.topics[0].startswith("$"):
            continue  # the broker's own, of the second that has passed meanwhile
        if batch.accepted_at // INTERVAL != window:
            expected += last.values()
            window, last = batch.accepted_at // INTERVAL, {}
        for record in batch.records():
            key = orjson.loads(record.body)["id"]
            last[key] = (last[key][0] if key in last else record.sequence, record.body)
    return expected + list(last.values())


def delivered(reader: RecordingClient, stream: int = 1) -> list[tuple[int, bytes]]:
    return [(sequence, body) for of, sequence, body in reader.deliveries if of == stream]


async def publish_recorded(writer: RawClient, broker: Broker, batches: int = 60) -> None:
    for number in range(batches):
        await prices(writer, number * 7, 7)
        await asyncio.sleep(0.008)
    await until(lambda: broker.engine.frontier.durable >= batches * 7)


async def test_a_conflated_replay_is_the_last_per_key_and_interval_of_the_full_replay(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
        await publish_recorded(writer, broker)
        expected = last_per_key_and_interval(broker)
        assert 5 < len(expected) < 420
        await reader.request(
            c="subscribe", id="s", topic="fx", bookmark="0", conflation="100ms", conflation_key="/id"
        )
        await until(lambda: reader.completed_ids() == ["s"])
        assert delivered(reader) == expected
        reader.close()


async def test_a_conflated_replay_that_is_paused_again_and_again_is_the_same(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
        await publish_recorded(writer, broker)
        expected = last_per_key_and_interval(broker)
        await reader.request(
            c="subscribe",
            id="s",
            topic="fx",
            bookmark="0",
            conflation="100ms",
            conflation_key="/id",
            rate="300",
        )
        for _ in range(6):
            await reader.request(c="pause", ids=["s"])
            await asyncio.sleep(0.01)
            await reader.request(c="resume", ids=["s"])
            await asyncio.sleep(0.01)
        await reader.request(c="pause", ids=["s"])
        await reader.request(c="rate", ids=["s"])
        await reader.request(c="resume", ids=["s"])
        await until(lambda: reader.completed_ids() == ["s"])
        assert delivered(reader) == expected
        reader.close()


async def test_live_records_of_a_key_come_once_an_interval(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
        await reader.request(c="subscribe", id="s", topic="fx", conflation="100ms", conflation_key="/id")
        await publish_recorded(writer, broker)
        newest = {n % 5: n for n in range(420)}
        await until(
            lambda: (
                {key: n for _, body in delivered(reader) for key, n in [tuple(orjson.loads(body).values())]}
                == newest
            )
        )
        assert len(delivered(reader)) < 100, "420 were published"
        assert reader.sequences_of() == sorted(reader.sequences_of())
        assert broker.engine.roster.clients["reader"].backlog.conflated_bytes == 0
        reader.close()


async def test_what_is_held_counts_in_the_memory_of_its_client(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
        await reader.request(
            c="subscribe", id="s", topic="fx", bookmark="0|1|", conflation="1h", conflation_key="/id"
        )
        await prices(writer, 0, 1_000, keys=100)
        connection = broker.engine.roster.clients["reader"]
        await until(lambda: connection.backlog.conflated_bytes > 100 * 20)
        use = broker.engine.policy_loop.find_usage(connection)
        assert use is not None and use.memory == connection.backlog.conflated_bytes == use.conflation_bytes
        reader.raw.send_command({"c": "unsubscribe", "id": "s"})
        await until(lambda: use.memory == 0)
        assert delivered(reader) == []
        reader.close()


async def test_a_rule_on_what_conflation_holds_sees_it(tmp_path: Path) -> None:
    held = {"name": "held", "signal": "conflation_bytes", "limit": 20_000, "ladder": [{"action": "notify"}]}
    async with running_broker(tmp_path, policy_with(held)) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
        await reader.request(c="subscribe", id="s", topic="fx", conflation="1h", conflation_key="/id")
        await prices(writer, 0, 2_000, keys=1_000)
        await until(lambda: broker.engine.decisions.recent)
        (decision,) = broker.engine.decisions.recent
        assert (decision.rule, decision.client) == ("held", "reader")
        assert (
            decision.observed == broker.engine.roster.clients["reader"].backlog.conflated_bytes > 1_000 * 200
        )
        reader.close()


async def test_a_pool_acts_on_what_conflation_holds_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    policy = policy_with(pool={"message_memory_limit": 100_000})
    async with running_broker(tmp_path, policy) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
        await reader.request(c="subscribe", id="s", topic="fx", conflation="1h", conflation_key="/id")
        await prices(writer, 0, 2_000, keys=1_000)
        await until(lambda: broker.engine.decisions.recent)
        decision, connection = broker.engine.decisions.recent[0], broker.engine.roster.clients["reader"]
        assert (decision.client, decision.action) == ("reader", "offline")
        await until(lambda: len(reader.deliveries) == 1_000 and connection.backlog.offline is None)
        assert [orjson.loads(body)["n"] for _, _, body in reader.deliveries] == list(range(1_000, 2_000))
        use = broker.engine.policy_loop.find_usage(connection)
        assert use is not None and use.memory == connection.backlog.conflated_bytes == 0
        reader.close()


async def test_topics_that_no_journal_keeps_are_conflated_as_well(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
        await reader.request(
            c="subscribe", id="s", topic="scratch.fx", conflation="50ms", conflation_key="/id"
        )
        for _ in range(20):
            await writer.publish("scratch.fx", [b'{"id":1,"v":1}', b'{"id":1,"v":2}'])
        await until(lambda: len(reader.deliveries) >= 1)
        assert {(sequence, body) for _, sequence, body in reader.deliveries} == {(0, b'{"id":1,"v":2}')}
        reader.close()
