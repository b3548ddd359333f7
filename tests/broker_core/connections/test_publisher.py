"""Replies to a publisher while its batches are being written to disk, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from broker_core.batch import Batch, build_batch
from broker_core.broker import Broker
from broker_core.config.access import AccessSettings, EntitlementSettings
from broker_core.config.preset_settings import QuotaSettings
from broker_core.connections.inbox import InputPauseReason
from broker_core.connections.publisher import MAX_TOPICS, MAX_UNCOMMITTED
from broker_core.errors import OperatorError
from broker_core.protocols.native import PUBLISH, encode_command, encode_frame_header
from broker_core.protocols.replies import Ack
from tests.support.brokers import running_broker, tcp_policy, until
from tests.support.raw import RawClient


def publish(number: int) -> bytes:
    return encode_command({"c": "publish", "topic": "t", "data": number})


def flush(id: str) -> bytes:
    return encode_command({"c": "flush", "id": id})


@contextmanager
def stalled_disk(broker: Broker) -> Iterator[None]:
    """Block all syncs of the journal until the block ends."""
    disk, journal = threading.Event(), broker.engine.journal
    sync = journal.sync

    def slow_sync(heard: Callable[[], object] | None = None) -> None:
        disk.wait(60)
        sync(heard)

    journal.sync = slow_sync  # type: ignore[method-assign]
    try:
        yield
    finally:
        journal.sync = sync  # type: ignore[method-assign]
        disk.set()


async def test_a_flush_waits_for_what_was_published_before_it_alone(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        client, many = await RawClient.connect(broker, "busy"), 20 * MAX_UNCOMMITTED
        client.write(flush("none") + publish(0) + flush("first") + b"".join(map(publish, range(1, many))))
        for id in ("none", "first"):
            assert (await client.read_until("completed"))["id"] == id
        assert broker.engine.dispatch.messages_in < many, "it waited for all that came behind it"
        client.write(flush("all"))
        assert (await client.read_until("completed"))["id"] == "all"
        assert broker.engine.dispatch.messages_in == many
        client.close()


async def test_a_client_whose_flushes_wait_for_the_disk_is_not_read_from(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        client, many = await RawClient.connect(broker, "busy"), 4 * MAX_UNCOMMITTED
        with stalled_disk(broker):
            client.write(publish(0) + b"".join(flush(str(number)) for number in range(many)) + publish(1))
            other = await RawClient.connect(broker, "other")
            await until(lambda: broker.engine.dispatch.messages_in == 1)
            for _ in range(50):  # turns in which it would be read from
                other.send_command({"c": "heartbeat"})
                await other.read_until("heartbeat")
            assert broker.engine.dispatch.messages_in == 1
        for number in range(many):
            assert (await client.read_until("completed"))["id"] == str(number)
        await until(lambda: broker.engine.dispatch.messages_in == 2)
        client.close()
        other.close()


async def test_a_paused_publisher_is_read_again_below_half_of_its_pending_batches(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker:
        client = await RawClient.connect(broker, "busy")
        publishing = broker.engine.roster.clients["busy"].publishing
        holds = publishing._inbox._pause_reasons
        for number in range(1, MAX_UNCOMMITTED + 1):
            publishing.on_submitted()
            assert list(holds) == ([InputPauseReason.PENDING_BATCHES] if number == MAX_UNCOMMITTED else []), (
                number
            )
        while holds:
            publishing.on_committed(1)
        assert publishing.pending_batches == MAX_UNCOMMITTED // 2 - 1
        client.close()


async def test_records_before_the_logon_are_refused_by_name_and_none_is_stored(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        client = await RawClient.open(broker)
        await client.publish("t", [b"1"], first=1)
        assert (await client.read_until("error"))["code"] == "not_logged_on"
        assert broker.engine.journal.next_sequence == 1
        client.close()


async def test_a_publisher_paused_by_a_stalled_disk_does_not_count_as_silent(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        client = await RawClient.open(broker)
        client.send_command({"c": "logon", "name": "busy", "heartbeat_ms": 100})
        await client.read_until("processed")
        busy = broker.engine.roster.clients["busy"]
        with stalled_disk(broker):
            client.write(b"".join(map(publish, range(2 * MAX_UNCOMMITTED))))
            await until(lambda: busy.publishing.pending_batches == MAX_UNCOMMITTED)
            busy.liveness.last_alive_at -= 60_000
            broker.engine.tick()
            assert not busy.is_reading and not busy.is_closed
        client.write(flush("all"))
        assert (await client.read_until("completed"))["id"] == "all"
        busy.liveness.last_alive_at -= 60_000
        broker.engine.tick()
        assert (await client.read_until("closing"))["code"] == "heartbeat_timeout"


async def test_what_it_published_is_counted_by_topic_and_of_many_topics_by_their_first_word(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker:
        client = await RawClient.connect(broker, "busy")
        topics = [f"prices.{number}" for number in range(2 * MAX_TOPICS)] + ["prices.0", "plain"]
        batch = build_batch("busy", topics, [b"x"] * len(topics))
        client.write(encode_frame_header(PUBLISH, 0, len(batch)) + batch + publish(1) + flush("all"))
        assert (await client.read_until("completed"))["id"] == "all"
        found = broker.engine.roster.clients["busy"].publishing
        assert found.messages == len(topics) + 1 == broker.engine.dispatch.messages_in
        assert found.topics["prices.0"] == 2 and found.topics["prices.>"] == MAX_TOPICS
        assert found.topics[">"] == 2, "a word alone is no prefix of others"
        client.close()


async def test_topics_beyond_the_limit_are_counted_together(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        client = await RawClient.connect(broker, "busy")
        topics = [f"{number}.x" for number in range(3 * MAX_TOPICS)]
        batch = build_batch("busy", topics, [b"x"] * len(topics))
        client.write(encode_frame_header(PUBLISH, 0, len(batch)) + batch + flush("all"))
        await client.read_until("completed")
        found = broker.engine.roster.clients["busy"].publishing.topics
        assert len(found) == 2 * MAX_TOPICS + 1
        assert found[">"] == MAX_TOPICS and found[f"{2 * MAX_TOPICS - 1}.>"] == 1
        client.close()


async def test_refused_records_are_reported_by_sequence_and_not_counted(tmp_path: Path) -> None:
    """In a batch as in a command: later records are accepted, and each message counts once against the
    rate.
    """
    quotas = (QuotaSettings(client_topics=1, client_publish_rate=100),)
    async with running_broker(tmp_path, replace(tcp_policy(), quotas=quotas)) as broker:
        client = await RawClient.connect(broker, "busy")
        await client.publish("t", [b"1", b"2"], first=1)
        await client.publish("other", [b"3", b"4"], first=3)
        told = await client.read_until("error")
        assert told["code"] == "over_quota"
        assert (told["of"], told["first"], told["sequence"]) == ("publish", 3, 4)
        client.send_command({"c": "publish", "topic": "other", "data": 1, "id": "x"})
        told = await client.read_until("error")
        assert (told["code"], told["of"], told["id"]) == ("over_quota", "publish", "x")
        client.write(b"".join(map(publish, range(70))) + flush("all"))
        assert (await client.read_until("completed"))["id"] == "all"
        found = broker.engine.roster.clients["busy"].publishing
        assert found.topics == {"t": 72} and broker.engine.dispatch.messages_in == 72
        assert found._resume_timer is None, "72 of the 100 that are there at once"
        client.close()


async def test_a_forbidden_topic_is_refused_in_a_batch_and_in_a_command(tmp_path: Path) -> None:
    plain = tcp_policy()
    access = AccessSettings(entitlements=(EntitlementSettings(("*",), publish=("mine.>",)),))
    transports = (replace(plain.transports[0], restricted=True),)
    async with running_broker(tmp_path, replace(plain, access=access, transports=transports)) as broker:
        client = await RawClient.connect(broker, "busy")
        client.send_command({"c": "publish", "topic": "theirs.a", "data": 1, "id": "x"})
        assert (await client.read_until("error"))["code"] == "not_entitled"
        await client.publish("theirs.a", [b"1"], first=1)
        assert (await client.read_until("error"))["code"] == "not_entitled"
        client.send_command({"c": "skip", "sequence": 1})
        await client.publish("mine.a", [b"2"], first=2)
        await client.read_until("persisted")
        assert broker.engine.journal.next_sequence == 2, "that one record alone is stored"


async def test_a_throttled_publisher_is_notified_now_and_then_not_per_message(tmp_path: Path) -> None:
    quotas = (QuotaSettings(client_publish_rate=100),)
    async with running_broker(tmp_path, replace(tcp_policy(), quotas=quotas)) as broker:
        client = await RawClient.connect(broker, "busy")
        for number in range(8):
            await client.publish("t", [b"x"] * 25, first=25 * number + 1)
        client.write(flush("all"))
        heard = []
        while not heard or heard[-1].get("ack") != "completed":
            heard.append(await client.next_command())
        assert [frame["code"] for frame in heard if frame["c"] == "notice"] == ["publish_paced"]


async def test_what_no_journal_keeps_is_processed_whatever_was_asked_for(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        client = await RawClient.connect(broker, "busy")
        client.send_command(
            {"c": "publish", "topic": "scratch.a", "data": 1, "id": "x", "ack": ["persisted"]}
        )
        answer = await client.next_command()
        assert (answer["ack"], answer["id"]) == ("processed", "x")


async def test_a_broker_that_is_given_patterns_that_cannot_be_read_says_so_and_allows_nothing_by_them(
    tmp_path: Path,
) -> None:
    plain = tcp_policy()
    rights = (EntitlementSettings(("*",), publish=("mine.>",)),)
    right = replace(
        plain,
        access=AccessSettings(entitlements=rights),
        transports=(replace(plain.transports[0], restricted=True),),
    )
    unread = EntitlementSettings(("*",), publish=(">", "a..b"))
    wrong = replace(right, revision=2, access=AccessSettings(entitlements=(unread,)))
    async with running_broker(tmp_path, right) as broker:
        with pytest.raises(OperatorError, match=r"entitlement 1: .*a\.\.b"):
            await broker.apply(wrong)
        client = await RawClient.connect(broker, "busy")
        await client.publish("theirs.a", [b"1"], first=1)
        assert (await client.read_until("error"))["code"] == "not_entitled"
        await client.publish("mine.a", [b"2"])
        await until(lambda: broker.engine.journal.next_sequence == 2)
    with pytest.raises(OperatorError) as caught:
        async with running_broker(tmp_path, wrong):
            pass
    assert caught.value.code == "bad_policy"


async def test_records_with_headers_are_stored_as_one_batch_and_counted(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        client = await RawClient.connect(broker, "busy")
        publishing = broker.engine.roster.clients["busy"].publishing
        answer = Ack(ack="persisted", of="publish", id="x")
        publishing.publish_records(["a", "b", "a"], [b"1", b"2", b"3"], [b"", b"", b""], [answer])
        assert (await client.read_until("persisted"))["id"] == "x"
        (batch,) = broker.engine.journal.read(1, 1_000_000, 3)
        assert [bytes(body) for body in batch.bodies()] == [b"1", b"2", b"3"]
        assert publishing.topics == {"a": 2, "b": 1}


async def test_a_topic_that_no_record_of_a_batch_has_counts_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        client = await RawClient.connect(broker, "busy")
        whole = Batch.parse(build_batch("busy", ["a", "b", "c"], [b"1", b"2", b"3"]))
        part = bytes(whole.select(np.array([0, 1]), explicit=False).buf)
        client.write(encode_frame_header(PUBLISH, 0, len(part)) + part + flush("all"))
        assert (await client.read_until("completed"))["id"] == "all"
        found = broker.engine.roster.clients["busy"].publishing.topics
        assert {topic: number for topic, number in found.items() if number} == {"a": 1, "b": 1}


async def test_answers_to_repeats_wait_for_what_was_published_before_and_count_as_no_batch(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker:
        client = await RawClient.connect(broker, "busy")
        publishing = broker.engine.roster.clients["busy"].publishing
        asked = {"c": "publish", "topic": "t", "data": 1, "sequence": 1, "ack": ["processed", "persisted"]}
        client.send_command({**asked, "id": "first"})
        await client.read_until("persisted")
        client.send_command({**asked, "id": "again"})
        heard = [await client.read_until(ack) for ack in ("processed", "persisted")]
        while heard[-1].get("id") != "again":
            heard.append(await client.read_until("persisted"))
        assert publishing.pending_batches == 0
        with stalled_disk(broker):
            client.write(encode_command({**asked, "sequence": 2, "id": "new"}))
            await until(lambda: publishing.pending_batches == 1)
            client.send_command({**asked, "id": "third"})
            assert (await client.read_until("processed"))["id"] == "new"
            assert (await client.read_until("processed"))["id"] == "third"
            assert publishing.pending_batches == 1 and len(publishing._waiting) == 1
        while (await client.read_until("persisted")).get("id") != "third":
            pass


async def test_a_throttled_publisher_gets_the_delay_in_milliseconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as broker:
        client = await RawClient.connect(broker, "busy")
        publishing = broker.engine.roster.clients["busy"].publishing
        monkeypatch.setattr(publishing._services.quotas, "charge_publish", lambda *_: 2.0)
        client.write(publish(1))
        assert (await client.read_until("notice"))["details"]["wait_ms"] == 2_000
