"""Content filters and message types in a running broker: journaling, acknowledgement, delivery and replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.batch import build_batch
from broker_core.config import JournaledTopic, PolicyDocument
from broker_core.errors import OperatorError
from broker_core.protocols.native import PUBLISH, encode_frame_header
from tests.support.brokers import running_broker, tcp_policy, until
from tests.support.failpoints import SyncGate
from tests.support.raw import RawClient


def policy_with(*entries: JournaledTopic) -> PolicyDocument:
    policy = tcp_policy()
    return replace(policy, instance=replace(policy.instance, journaled_topics=entries))


ORDERS = policy_with(JournaledTopic("orders", "fix", "/44 > 100"))
CHEAP, DEAR = b"35=D\x0144=5\x01", b"35=D\x0144=500\x01"


async def test_only_what_passes_is_journaled_and_all_of_it_is_delivered(tmp_path: Path) -> None:
    async with running_broker(tmp_path, ORDERS) as broker:
        live, anna = await RawClient.connect(broker, "live"), await RawClient.connect(broker, "anna")
        live.send_command({"c": "subscribe", "id": "s", "topic": "orders"})
        await live.read_until("processed")
        await anna.publish("orders", [CHEAP, DEAR, CHEAP], 1)
        assert await live.deliveries(3) == [CHEAP, DEAR, CHEAP]
        late = await RawClient.connect(broker, "late")
        late.send_command({"c": "subscribe", "id": "s", "topic": "orders", "bookmark": "0"})
        assert await late.deliveries(1) == [DEAR]
        # Nothing is wrong with the other two: they are not of the log, so that a replay ends there.
        await anna.publish("orders", [CHEAP], 4)
        await anna.publish("orders", [DEAR + b"1=x\x01"], 5)
        assert await late.deliveries(1) == [DEAR + b"1=x\x01"]


async def test_a_batch_of_both_kinds_is_acknowledged_when_the_whole_of_it_is_done(tmp_path: Path) -> None:
    """The last record isn't journaled: an ack of its own would have the publisher forget the one before
    it.
    """
    async with running_broker(tmp_path, ORDERS) as broker:
        anna = await RawClient.connect(broker, "anna")
        await anna.publish("orders", [DEAR, CHEAP], 1)
        while (answer := await anna.read_until("ack"))["ack"] != "persisted":
            assert answer["ack"] != "processed" or "sequence" not in answer
        assert answer["sequence"] == 2
        await anna.publish("orders", [CHEAP], 3)
        answer = await anna.read_until("processed")
        assert (answer["first"], answer["sequence"]) == (3, 3)


async def test_what_isnt_journaled_comes_behind_what_its_publisher_had_recorded_before(
    tmp_path: Path,
) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, ORDERS, files=gate) as broker:
        live, anna = await RawClient.connect(broker, "live"), await RawClient.connect(broker, "anna")
        live.send_command({"c": "subscribe", "id": "s", "topic": ">"})
        await live.read_until("processed")
        gate.block()
        await anna.publish("orders", [DEAR], 1)
        await until(gate.waiting.is_set)
        await anna.publish("orders", [CHEAP], 2)
        await anna.publish("scratch.other", [b"at once"], 3)
        bob = await RawClient.connect(broker, "bob")
        await bob.publish("scratch.other", [b"another's"], 1)
        assert await live.deliveries(1) == [b"another's"], "who had nothing recorded waits for nothing"
        gate.release()
        assert await live.deliveries(3) == [DEAR, CHEAP, b"at once"]
        assert (await anna.read_until("processed"))["first"] == 2
        assert (await anna.read_until("processed"))["first"] == 3
        assert (await anna.read_until("persisted"))["sequence"] == 1


async def test_filters_of_subscriptions_read_the_message_type_live_and_in_a_replay(tmp_path: Path) -> None:
    policy = policy_with(JournaledTopic("fix.>", "fix"), JournaledTopic(">"))
    async with running_broker(tmp_path, policy) as broker:
        anna, live = await RawClient.connect(broker, "anna"), await RawClient.connect(broker, "live")
        live.send_command({"c": "subscribe", "id": "s", "topic": ">", "filter": "/44 > 100 OR /a = 1"})
        await live.read_until("processed")
        mixed = build_batch(
            "anna", ["fix.x", "fix.x", "json"], [CHEAP, DEAR, b'{"a": 1}'], first_publisher_sequence=1
        )
        anna.write(encode_frame_header(PUBLISH, 0, len(mixed)) + mixed)
        assert await live.deliveries(2) == [DEAR, b'{"a": 1}']
        late = await RawClient.connect(broker, "late")
        late.send_command(
            {"c": "subscribe", "id": "s", "topic": ">", "filter": "/44 > 100 OR /a = 1", "bookmark": "0"}
        )
        assert await late.deliveries(2) == [DEAR, b'{"a": 1}']


async def test_a_new_revision_changes_what_is_journaled_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path, ORDERS) as broker:
        anna = await RawClient.connect(broker, "anna")
        with pytest.raises(OperatorError):
            await broker.apply(replace(policy_with(JournaledTopic("orders", filter="/a =")), revision=2))
        assert broker.engine.policy.revision == 1
        await broker.apply(replace(policy_with(JournaledTopic("quotes")), revision=2))
        await anna.publish("orders", [DEAR], 1)
        assert (await anna.read_until("ack"))["ack"] == "processed"
