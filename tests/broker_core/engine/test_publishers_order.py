"""Property test: a subscriber sees a publisher's records in publishing order, whichever are recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_core.batch import build_batch
from broker_core.broker import Broker
from broker_core.config import JournaledTopic
from broker_core.protocols.native import PUBLISH, encode_frame_header
from tests.support.brokers import running_broker, tcp_policy, until
from tests.support.failpoints import SyncGate
from tests.support.raw import RawClient

POLICY = replace(
    tcp_policy(),
    instance=replace(
        tcp_policy().instance,
        journaled_topics=(JournaledTopic("by.content", "json", "/kept = true"), JournaledTopic("kept.>")),
    ),
)
TOPICS = ("kept.a", "scratch.b", "by.content", "by.content")
"""Topics whose records are journaled, not journaled, or journaled by their body: the third is, the fourth
is not.
"""
BATCH = st.lists(st.integers(0, 3), min_size=1, max_size=12)
STEP = st.one_of(BATCH, st.sampled_from(["shut", "open"]))


def body_of(number: int, kind: int) -> bytes:
    return json.dumps({"n": number, "kept": kind == 2, "odd": bool(number % 2)}).encode()


class OrderSubscriber:
    """A subscriber that collects the numbers of the messages it receives."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.numbers: list[int] = []

    @classmethod
    async def begin(cls, broker: Broker, name: str, **asked: object) -> OrderSubscriber:
        client = await RawClient.connect(broker, name)
        client.send_command({"c": "subscribe", "id": "s", **asked})
        await client.read_until("processed")
        return cls(client)

    async def expect(self, numbers: Sequence[int]) -> None:
        """Receive as many, and see that they are these, in order."""
        bodies = await self.client.deliveries(len(numbers)) if numbers else []
        self.numbers = [json.loads(body)["n"] for body in bodies]
        assert self.numbers == list(numbers)


async def run(directory: Path, steps: Sequence[list[int] | str], numbered: bool) -> None:
    gate = SyncGate()
    async with running_broker(directory, POLICY, files=gate) as broker:
        everything = await OrderSubscriber.begin(broker, "everything", topic=">")
        another = await OrderSubscriber.begin(broker, "another", topic=">")
        odd = await OrderSubscriber.begin(broker, "odd", topic=">", filter="/odd = true")
        levels = await OrderSubscriber.begin(broker, "levels", topic="by.content")
        windowed = await OrderSubscriber.begin(broker, "windowed", topic=">", ack="auto", prefetch=1_000)
        log = await OrderSubscriber.begin(broker, "log", topic=">", bookmark="0")
        anna = await RawClient.connect(broker, "anna")
        kinds: list[int] = []
        for step in steps:
            if step == "shut":
                gate.block()
            elif step == "open":
                gate.release()
                await asyncio.sleep(0.005)
            else:
                numbers = range(len(kinds), len(kinds) + len(step))
                bodies = [body_of(number, kind) for number, kind in zip(numbers, step, strict=True)]
                built = build_batch(
                    "anna",
                    [TOPICS[kind] for kind in step],
                    bodies,
                    first_publisher_sequence=len(kinds) + 1 if numbered else 0,
                )
                anna.write(encode_frame_header(PUBLISH, 0, len(built)) + built)
                kinds += step
        await until(lambda: broker.engine.dispatch.messages_in == len(kinds))
        gate.release()
        of_all = list(range(len(kinds)))
        await everything.expect(of_all)
        await another.expect(of_all)
        await windowed.expect(of_all)
        await odd.expect([number for number in of_all if number % 2])
        await levels.expect([number for number in of_all if kinds[number] >= 2])
        await log.expect([number for number in of_all if kinds[number] in (0, 2)])
        dispatch = broker.engine.dispatch
        await until(lambda: not dispatch.numbers.in_flight)
        assert dispatch._trailing_bytes == 0
        await until(lambda: broker.engine.roster.clients["anna"].publishing.pending_batches == 0)
        for name in ("everything", "another", "odd"):
            account = broker.engine.roster.clients[name].backlog.account
            assert account.outstanding.messages == account.in_flight.messages, (
                "what was matched was handed over"
            )


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=10), st.booleans())
@example([[2, 3, 2, 3]], True)
@example(["shut", [2, 3, 2, 3], [1], [0, 1, 3], [1]], True)
@example(["shut", [0], [1], [2], "open", [1], [3, 2]], False)
def test_a_subscriber_sees_a_publishers_order_whatever_is_recorded(
    steps: list[list[int] | str], numbered: bool
) -> None:
    with TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory), steps, numbered))


async def test_what_waits_for_others_word_holds_up_no_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path, POLICY) as broker:
        dispatch = broker.engine.dispatch
        monkeypatch.setattr(dispatch, "_needs_confirmation", lambda batch, upto: True)
        watcher = await OrderSubscriber.begin(broker, "everything", topic=">")
        anna = await RawClient.connect(broker, "anna")
        await anna.publish("by.content", [body_of(0, 2), body_of(1, 3), body_of(2, 2)], 1)
        await anna.publish("scratch.b", [body_of(3, 1)], 4)
        await anna.publish("kept.a", [body_of(4, 0)], 5)
        await watcher.expect([0, 1, 2, 3, 4])
        await anna.publish("scratch.b", [body_of(5, 1)], 6)
        await watcher.expect([5])
        said = [one for one in anna.received_commands if one.get("ack") == "persisted"]
        assert said == [], "delivered, and not confirmed"
        dispatch.on_confirmed(broker.engine.frontier.durable)
        while (await anna.read_until("persisted"))["sequence"] < 5:
            pass
        assert dispatch._trailing_bytes == 0 and not dispatch.numbers.in_flight


async def test_nothing_of_a_batch_is_delivered_when_the_disk_refuses_it(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, POLICY, files=gate, broken=("journal_failed",)) as broker:
        watcher = await OrderSubscriber.begin(broker, "everything", topic=">")
        anna, bob = await RawClient.connect(broker, "anna"), await RawClient.connect(broker, "bob")
        gate.block()
        await anna.publish("by.content", [body_of(0, 2), body_of(1, 3)], 1)
        await anna.publish("scratch.b", [body_of(2, 1)], 3)
        await until(lambda: broker.engine.dispatch._trailing_bytes > 0)
        gate.release(OSError(5, "put in by the test"))
        assert (await anna.read_until("error"))["code"] == "journal_failed"
        assert broker.engine.dispatch._trailing_bytes == 0
        await bob.publish("scratch.b", [body_of(9, 1)], 1)
        await watcher.expect([9])
