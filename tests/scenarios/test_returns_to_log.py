"""Log subscriptions whose clients stop reading, by raw sockets: notices and real deliveries. At most 30 s."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker_core.broker import Broker
from broker_core.config.instance import JournaledTopic
from broker_core.protocols.native import encode_command
from tests.support.brokers import ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with, rule
from tests.support.stalled import StalledSubscriber

BODY = b"x" * 4_000


async def publish(writer: RawClient, topic: str, keys: range, times: int = 1) -> None:
    """Publish messages of each key several times; return when they are stored."""
    for _ in range(times):
        for start in range(keys.start, keys.stop, 10):
            part = range(start, min(start + 10, keys.stop))
            await writer.publish(topic, [b'{"id":1%05d,"x":"%s"}' % (key, BODY) for key in part])
    writer.send_command({"c": "flush", "id": "f"})
    await writer.read_until("completed")


def keys_of(bodies: list[bytes]) -> list[int]:
    return [int(body[7:12]) for body in bodies]


async def client_entry(broker: Broker, name: str) -> dict[str, Any]:
    """Return the broker's entry of a client."""
    entry: dict[str, Any] = await ask(broker, "client", name=name)
    return entry


async def test_a_snapshot_stays_one_when_its_client_falls_behind(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        writer = await RawClient.connect(broker, "writer")
        await publish(writer, "t", range(300), times=3)
        reader = await StalledSubscriber.connect(broker, "reader", "t", snapshot_key="/id")
        await until(lambda: broker.engine.roster.clients["reader"].account.matched.messages == 300)
        await publish(writer, "t", range(300, 600))
        await asyncio.sleep(1.2)  # the client has read nothing, and later records wait in the log
        got = keys_of(await reader.read_bodies(600))
        assert got == list(range(600))
        await until(lambda: broker.engine.roster.clients["reader"].account.in_flight.messages == 0)
        entry = await client_entry(broker, "reader")
        assert (entry["matched_messages"], entry["waiting_messages"], entry["gone"]) == (600, 0, {})


async def test_a_range_that_is_over_has_lost_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        writer = await RawClient.connect(broker, "writer")
        await publish(writer, "t", range(300))
        reader = await RawClient.connect(broker, "reader")
        reader.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": "[0:0|1|)"})
        assert keys_of(await reader.deliveries(300)) == list(range(300))
        assert (await reader.read_until("completed"))["ended"]
        connection = broker.engine.roster.clients["reader"]

        def wait_all_read() -> bool:
            connection.backlog.update_progress()
            return bool(connection.account.acknowledged.messages == 300)

        await until(wait_all_read)
        entry = await client_entry(broker, "reader")
        assert (entry["delivered_messages"], entry["gone"], entry["lost_messages"]) == (300, {}, 0)
        await asyncio.sleep(1.1)
        assert await ask(broker, "ledger", client="reader") == []


async def test_journaled_records_of_an_offlined_client_wait_in_the_log(tmp_path: Path) -> None:
    policy = policy_with()
    policy = replace(policy, instance=replace(policy.instance, journaled_topics=(JournaledTopic("t"),)))
    async with running_broker(tmp_path, policy) as broker:
        writer = await RawClient.connect(broker, "writer")
        reader = await StalledSubscriber.connect(broker, "reader", "scratch")
        for id in ("before", "after"):
            command = {"c": "subscribe", "id": id, "topic": "t", "bookmark": "0|1|"}
            await asyncio.get_running_loop().sock_sendall(reader._socket, encode_command(command))
            await until(lambda id=id: id in broker.engine.roster.clients["reader"].subscriptions)
            if id == "before":  # the second subscription starts while the client is offlined
                await publish(writer, "scratch", range(300))
                await ask(broker, "offline", name="reader")
        spooled = (await client_entry(broker, "reader"))["spool_messages"]
        await publish(writer, "t", range(1_000, 1_200))
        entry = await client_entry(broker, "reader")
        assert (entry["spool_messages"], entry["lag_messages"]) == (spooled, max(spooled, 200))
        got = keys_of(await reader.read_bodies(700))
        assert [key for key in got if key < 1_000] == list(range(300))
        assert sorted(key for key in got if key >= 1_000) == sorted([*range(1_000, 1_200)] * 2)
        await until(lambda: broker.engine.roster.clients["reader"].backlog.offline is None)
        assert (await client_entry(broker, "reader"))["gone"] == {}


async def test_a_window_that_starts_with_unjournaled_messages_gets_the_next_log_position(
    tmp_path: Path,
) -> None:
    policy = policy_with()
    policy = replace(policy, instance=replace(policy.instance, journaled_topics=(JournaledTopic("t"),)))
    async with running_broker(tmp_path, policy) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RawClient.connect(broker, "reader")
        reader.send_command({"c": "subscribe", "id": "s", "topic": ">", "ack": "client", "prefetch": 90})
        await reader.read_until("processed")
        for number, topic in enumerate(("scratch", "t", "scratch", "t")):
            await publish(writer, topic, range(number * 10, number * 10 + 10))
        await reader.deliveries(40)
        reader.send_command({"c": "unsubscribe", "id": "s"})
        answer = await reader.read_until("processed")
        assert (answer["kept"], answer["lost"], answer["bookmark"]) == (20, 20, "test-1|0|")
        reader.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": answer["bookmark"]})
        assert keys_of(await reader.deliveries(20)) == [*range(10, 20), *range(30, 40)]


async def test_a_replay_that_is_ended_says_where_it_stood(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        writer = await RawClient.connect(broker, "writer")
        await publish(writer, "t", range(300))
        reader = await RawClient.connect(broker, "reader")
        reader.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": "0|1|", "paused": True})
        await reader.read_until("processed")
        await publish(writer, "t", range(300, 310))
        reader.send_command({"c": "unsubscribe", "id": "s"})
        answer = await reader.read_until("processed")
        reader.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": answer["bookmark"]})
        assert keys_of(await reader.deliveries(10)) == list(range(300, 310))


async def test_a_replay_isn_t_cancelled_for_what_it_was_just_sent(tmp_path: Path) -> None:
    policy = policy_with(rule("cancel_subscription", 20, topic="t"))
    async with running_broker(tmp_path, policy) as broker:
        writer = await RawClient.connect(broker, "writer")
        await publish(writer, "t", range(300))
        reader = await StalledSubscriber.connect(broker, "reader", "t", bookmark="0")
        await publish(writer, "t", range(300, 330))
        await asyncio.sleep(1.2)
        assert (await client_entry(broker, "reader"))["lag_messages"] >= 200
        assert keys_of(await reader.read_bodies(330)) == list(range(330))
        assert await ask(broker, "decisions") == []


async def test_what_a_subscription_that_fell_back_still_has_to_read_is_not_removed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        writer = await RawClient.connect(broker, "writer")
        reader = await StalledSubscriber.connect(broker, "reader", "t", bookmark="0|1|")
        await publish(writer, "t", range(1_000))
        connection = broker.engine.roster.clients["reader"]
        await until(lambda: connection.account.in_log.messages > 0)
        await asyncio.to_thread(broker.engine.journal.preallocate)
        plan = await ask(broker, "journal_plan", action="remove", age_s=0)
        assert plan["chosen"] == []
        assert "reader" in plan["skipped"][0]["why"]
        assert keys_of(await reader.read_bodies(1_000)) == list(range(1_000))
        await until(lambda: connection.subscriptions["s"].cursor.is_live)
        plan = await ask(broker, "journal_plan", action="remove", age_s=0)
        assert plan["chosen"], "a live subscription pins no records"
        await ask(broker, "journal_remove", names=plan["chosen"], age_s=0)
        assert (await client_entry(broker, "reader"))["gone"] == {}
