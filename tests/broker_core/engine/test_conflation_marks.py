"""Conflation marks: a client sees on deliveries that its backlog was conflated, and on the first later one
that this ended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from broker_core.client.messages import batch_messages
from broker_core.engine.enforcement import offline_client
from broker_core.protocols.text_mode import encode_messages
from tests.broker_core.engine.test_enforcement import WindowScenario, slow_client
from tests.support.brokers import until
from tests.support.raw import RawClient
from tests.support.rules import rule

LEFT, OVER, NONE = "conflated", "conflation_over", ""


async def publish(there: WindowScenario, numbers: Sequence[int]) -> None:
    for number in numbers:
        await there.writer.publish("t", {"k": number % 3, "n": number})
        await there.writer.flush()


async def read(raw: RawClient, number: int) -> list[tuple[int, str]]:
    return [(json.loads(body)["n"], mark) for body, mark in await raw.deliveries_with_marks(number)]


async def conflated(there: WindowScenario, lost: int = 6) -> None:
    slow = there.broker.engine.roster.clients["slow"]
    await until(lambda: slow.account.lost_volume.messages == lost)
    assert there.balanced()


def acknowledge(there: WindowScenario, upto: int) -> None:
    there.slow.send_command({"c": "ack", "id": "s", "upto": upto})


async def read_all(there: WindowScenario, number: int) -> list[tuple[int, str]]:
    """Read `number` messages, acknowledging after every two."""
    found = await read(there.slow, 2)
    while len(found) < number:
        acknowledge(there, len(found))
        found += await read(there.slow, min(2, number - len(found)))
    return found


@pytest.mark.parametrize("bookmark", ["0|1|", None], ids=["of the log", "live"])
async def test_what_is_left_is_marked_and_so_is_the_end_and_nothing_else(
    tmp_path: Path, bookmark: str | None
) -> None:
    options = {"bookmark": bookmark} if bookmark else {}
    async with slow_client(tmp_path, rule("conflate"), snapshot_key="/k", **options) as there:
        await publish(there, range(11))
        await conflated(there)
        await publish(there, [11, 12])
        sent_before = [(0, NONE), (1, NONE)]
        assert await read_all(there, 7) == [
            *sent_before,
            (8, LEFT),
            (9, LEFT),
            (10, LEFT),
            (11, OVER),
            (12, NONE),
        ]
        stored = there.broker.engine.journal.read(1, 1 << 20, 1 << 40)
        assert not any(batch.flags for batch in stored), "the log's bytes are what they were"


async def test_another_client_of_the_same_batches_sees_no_mark(tmp_path: Path) -> None:
    async with slow_client(
        tmp_path, rule("conflate", scope={"client": "slow", "topic": "t"}), snapshot_key="/k"
    ) as there:
        other = await RawClient.connect(there.broker, "other")
        other.send_command({"c": "subscribe", "id": "s", "topic": "t"})
        await other.read_until("processed")
        await publish(there, range(11))
        await conflated(there)
        await publish(there, [11])
        assert await read(other, 12) == [(number, NONE) for number in range(12)]


async def test_the_marks_outlive_the_spool_and_the_way_back_to_the_log(tmp_path: Path) -> None:
    """Reading the log again would bring the records that were left out."""
    async with slow_client(tmp_path, rule("conflate"), snapshot_key="/k", bookmark="0|1|") as there:
        await publish(there, range(11))
        await conflated(there)
        engine = there.broker.engine
        slow = engine.roster.clients["slow"]
        engine.control.fall_back(slow.subscriptions["s"])
        slow.sink.is_writable = False
        offline_client(engine.enforcer, slow)
        await publish(there, [11])
        slow.sink.is_writable = True
        slow.on_writable()
        assert await read_all(there, 6) == [
            (0, NONE),
            (1, NONE),
            (8, LEFT),
            (9, LEFT),
            (10, LEFT),
            (11, OVER),
        ]
        assert there.balanced()


async def test_where_nothing_was_left_out_nothing_is_marked(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("conflate"), snapshot_key="/n") as there:
        await publish(there, range(11))
        await there.decided()
        lane = there.broker.engine.roster.clients["slow"].backlog.queues[1]
        await until(lambda: not lane.is_conflating)
        acknowledge(there, 2)
        assert await read(there.slow, 4) == [(number, NONE) for number in range(4)]


def test_texts_and_messages_show_the_mark() -> None:
    from broker_core import batch

    plain = batch.Batch.parse(batch.build_single_topic_batch("w", "t", [b"1", b"2"]))
    for mark, word in ((batch.CONFLATED, LEFT), (batch.CONFLATION_OVER, OVER)):
        marked = batch.Batch.parse(bytes(plain.with_conflation_mark(mark).buf))
        assert [one.mark for one in batch_messages(marked, "i")] == [word, word]
        assert [json.loads(text)["mark"] for text in encode_messages(marked, "s", "i")] == [word, word]
        assert marked.bodies() == plain.bodies() and marked.header.payload_crc == plain.header.payload_crc
    assert "mark" not in json.loads(encode_messages(plain, "s", "i")[0])
