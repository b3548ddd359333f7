"""Bookmark subscriptions through a real broker: points, ranges, gaps, durability, acks, and clients that stop
reading.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_core.batch import Batch
from broker_core.bookmark import format_moment
from broker_core.broker import Broker
from broker_core.client import AsyncClient, MemoryBookmarkStore
from broker_core.client.subscription import Subscription
from broker_core.errors import ClientError
from broker_core.protocols.native import COMMAND
from tests.broker_core.test_broker import numbered_bodies, take
from tests.support.brokers import address_of, ask, running_broker, tcp_policy, until
from tests.support.raw import RawClient
from tests.support.recording_client import RecordingClient
from tests.support.stalled import StalledSubscriber

SECOND = 10**9


async def publish(writer: AsyncClient, first: int, last: int, topic: str = "a") -> None:
    await writer.publish_many(topic, numbered_bodies(first, last))
    await writer.flush()


async def read_all_sequences(subscription: Subscription, seconds: float = 10.0) -> list[int]:
    """Return the sequences that a subscription delivers until it ends."""
    found: list[int] = []
    async with asyncio.timeout(seconds):
        async for batch in subscription.batches():
            found += batch.sequences().tolist()
    return found


class ReplayScenario:
    """A broker with a writer and a reader."""

    def __init__(self, broker: Broker, writer: AsyncClient, reader: AsyncClient) -> None:
        self.broker, self.writer, self.reader = broker, writer, reader

    async def records(self, number: int, each: int = 1) -> list[int]:
        """Publish batches of `each`; their first sequences."""
        firsts = []
        for start in range(0, number, each):
            firsts.append(self.broker.engine.journal.next_sequence)
            await publish(self.writer, start, start + each)
        return firsts


@pytest.fixture
async def scenario(tmp_path: Path) -> Any:
    async with running_broker(tmp_path) as broker:
        async with (
            AsyncClient(address_of(broker), "writer") as writer,
            AsyncClient(address_of(broker), "reader") as reader,
        ):
            # The clients' own events are journaled; they are over before a test counts.
            broker.engine.tick()
            await until(lambda: broker.engine.frontier.stamped == broker.engine.frontier.durable > 0)
            yield ReplayScenario(broker, writer, reader)


def sequence_of(bookmark: str | None) -> int:
    return int(bookmark.split("|")[1]) if bookmark and "|" in bookmark else 0


def bookmark_of(sequence: int) -> str:
    return f"test-1|{sequence}|"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[{2}:{4}]", [2, 3, 4]),
        ("({2}:{4}]", [3, 4]),
        ("[{2}:{4})", [2, 3]),
        ("({2}:{4})", [3]),
        ("[{3},{2}:{4},{1}]", [2, 3, 4]),
        ("[{5}:0|1|]", [5, 6, 7, 8, 9]),
        ("({4}:{4}]", []),
    ],
)
async def test_a_range_of_bookmarks_is_delivered_and_then_the_subscription_is_over(
    scenario: ReplayScenario, text: str, wanted: list[int]
) -> None:
    firsts = await scenario.records(10)
    for place, sequence in enumerate(firsts):
        text = text.replace(f"{{{place}}}", bookmark_of(sequence))
    subscription = await scenario.reader.subscribe("a", bookmark=text)
    assert await read_all_sequences(subscription) == [firsts[place] for place in wanted]
    assert subscription.completed.is_set()
    assert scenario.broker.engine.roster.clients["reader"].subscriptions == {}
    await scenario.reader.subscribe("a", bookmark=text)  # its id is free again


async def test_a_range_within_batches_cuts_them(scenario: ReplayScenario) -> None:
    first, second = await scenario.records(200, 100)
    found = await read_all_sequences(
        await scenario.reader.subscribe(
            "a", bookmark=f"[{bookmark_of(first + 90)}:{bookmark_of(second + 9)}]"
        )
    )
    assert found == list(range(first + 90, second + 10))


async def test_moments_begin_and_end_replays(scenario: ReplayScenario) -> None:
    firsts = await scenario.records(3)
    read = scenario.broker.engine.journal.read(firsts[0], 1, firsts[2])[0]
    at = [scenario.broker.engine.journal.read(first, 1, firsts[2])[0].accepted_at for first in firsts]
    assert read.accepted_at == at[0]
    # A bookmark's moment has microseconds: one after the record's.
    after = format_moment(at[1] + 1_000)
    assert (
        await read_all_sequences(await scenario.reader.subscribe("a", bookmark=f"[20200101T000000:{after}]"))
        == firsts[:2]
    )
    assert (
        await read_all_sequences(await scenario.reader.subscribe("a", bookmark=f"({after}:0|1|]", id="2"))
        == firsts[2:]
    )
    before_all = await scenario.reader.subscribe("a", bookmark="20200101T000000Z", id="3")
    assert len(await take(before_all, 3)) == 3


async def test_a_range_of_times_to_come_begins_and_ends_when_they_come(scenario: ReplayScenario) -> None:
    engine = scenario.broker.engine
    begin, end = engine.clock.now_ns() + SECOND // 3, engine.clock.now_ns() + SECOND
    await scenario.records(2)
    subscription = await scenario.reader.subscribe(
        "a", bookmark=f"[{format_moment(begin)}:{format_moment(end)})"
    )
    await publish(scenario.writer, 10, 12)
    await until(lambda: engine.clock.now_ns() > begin + 1_000)
    assert not subscription.completed.is_set()
    await publish(scenario.writer, 20, 25)
    assert await take(subscription, 5) == numbered_bodies(20, 25)
    assert await read_all_sequences(subscription) == []
    assert engine.clock.now_ns() >= end
    assert subscription.completed.is_set()


async def test_a_moment_to_come_without_an_end_is_live_from_then_on(scenario: ReplayScenario) -> None:
    engine = scenario.broker.engine
    begin = engine.clock.now_ns() + SECOND // 3
    subscription = await scenario.reader.subscribe("a", bookmark=format_moment(begin))
    await asyncio.wait_for(subscription.completed.wait(), 5)
    await publish(scenario.writer, 0, 5)
    await until(lambda: engine.clock.now_ns() > begin + 1_000)
    await publish(scenario.writer, 5, 10)
    assert await take(subscription, 5) == numbered_bodies(5, 10)
    await until(lambda: not engine.roster.clients["reader"].subscriptions["a"].cursor.is_behind)
    await publish(scenario.writer, 10, 15)
    assert await take(subscription, 5) == numbered_bodies(10, 15)


async def remove_oldest(scenario: ReplayScenario) -> int:
    """Fill the log and remove its first segment; the oldest sequence that is left."""
    while len(scenario.broker.engine.journal.segments()) < 3:
        await scenario.writer.publish_many("a", [b"x" * 1_000] * 200)
        await scenario.writer.flush()
    scenario.broker.engine.journal.finish_sealed()
    await ask(
        scenario.broker, "journal_remove", age_s=0, names=[scenario.broker.engine.journal.segments()[0].name]
    )
    return scenario.broker.engine.journal.first_sequence


async def test_removed_records_are_a_gap_with_the_exact_interval_and_then_the_oldest_record(
    scenario: ReplayScenario,
) -> None:
    oldest = await remove_oldest(scenario)
    subscription = await scenario.reader.subscribe("a", bookmark=bookmark_of(5))
    async for batch in subscription.batches():
        assert batch.first_sequence == oldest
        break
    (gap,) = subscription.gaps
    assert (gap.first, gap.last) == (bookmark_of(6), bookmark_of(oldest - 1))


async def test_removed_records_refuse_a_subscription_that_asks_for_that(scenario: ReplayScenario) -> None:
    oldest = await remove_oldest(scenario)
    with pytest.raises(ClientError) as caught:
        await scenario.reader.subscribe("a", bookmark=bookmark_of(5), on_gap="error")
    assert caught.value.code == "bookmark_gone"
    assert caught.value.details == {
        "from": bookmark_of(6),
        "to": bookmark_of(oldest - 1),
        "oldest": bookmark_of(oldest),
    }
    await scenario.reader.subscribe("a", bookmark=bookmark_of(oldest - 1), on_gap="error")


async def test_a_bookmark_that_was_never_here_starts_now_and_says_so(scenario: ReplayScenario) -> None:
    await scenario.records(5)
    subscription = await scenario.reader.subscribe("a", bookmark="elsewhere|3|")
    notice = scenario.reader.notices[-1]
    assert (notice.code, notice.details["unknown"]) == ("bookmark_unknown", ["elsewhere|3|"])
    await publish(scenario.writer, 100, 103)
    assert await take(subscription, 3) == numbered_bodies(100, 103)


async def test_a_list_with_another_instance_resumes_exactly_at_this_ones_bookmark(
    scenario: ReplayScenario,
) -> None:
    firsts = await scenario.records(5)
    subscription = await scenario.reader.subscribe("a", bookmark=f"elsewhere|3|,{bookmark_of(firsts[2])}")
    assert await take(subscription, 2) == numbered_bodies(3, 5)
    assert scenario.reader.notices[-1].details["unknown"] == ["elsewhere|3|"]


async def test_a_pattern_covers_journaled_topics_alone_during_and_after_the_replay(
    scenario: ReplayScenario,
) -> None:
    await publish(scenario.writer, 0, 2, "scratch.a")
    await publish(scenario.writer, 2, 4)
    subscription = await scenario.reader.subscribe("~(scratch\\.)?a", bookmark="0")
    await subscription.completed.wait()
    await publish(scenario.writer, 4, 6, "scratch.a")
    await publish(scenario.writer, 6, 8)
    assert await take(subscription, 4) == numbered_bodies(2, 4) + numbered_bodies(6, 8)


@pytest.mark.parametrize("pattern", ["scratch.a", "scratch.>", "scratch.*.x", "*.tmp"])
@pytest.mark.parametrize("options", [{"bookmark": "0"}, {"durable": "d"}, {"snapshot_key": "/id"}])
async def test_a_pattern_that_can_name_no_journaled_topic_is_refused(
    tmp_path: Path, pattern: str, options: dict[str, str]
) -> None:
    policy = tcp_policy()
    instance = replace(policy.instance, unjournaled_topics=("scratch.>", "*.tmp"))
    async with running_broker(tmp_path, replace(policy, instance=instance)) as broker:
        reader = await RecordingClient.connect(broker)
        (refused,) = await reader.request(c="subscribe", id="s", topic=pattern, **options)
        assert (refused["code"], refused["id"]) == ("not_journaled", "s")
        (taken,) = await reader.request(c="subscribe", id="s", topic="*.a", **options)
        assert taken["ack"] == "processed"
        reader.close()


async def test_messages_carry_their_time_when_asked(scenario: ReplayScenario) -> None:
    before = scenario.broker.engine.clock.now_ns()
    await publish(scenario.writer, 0, 1)
    subscription = await scenario.reader.subscribe("a", bookmark="0", timestamp=True)
    without = await scenario.reader.subscribe("a", bookmark="0", id="without")
    async for message in subscription:
        assert message.timestamp is not None
        assert before <= message.timestamp <= scenario.broker.engine.clock.now_ns()
        break
    async for message in without:
        assert message.timestamp is None
        break


async def test_live_delivery_comes_before_the_disk_and_once(
    scenario: ReplayScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scenario.records(3)
    subscription = await scenario.reader.subscribe("a", bookmark="0", durability="live")
    careful = await scenario.reader.subscribe("a", bookmark="0", id="careful")
    assert await take(subscription, 3) == await take(careful, 3) == numbered_bodies(0, 3)
    await publish(scenario.writer, 3, 6)  # with this group it changes over
    assert await take(subscription, 3) == await take(careful, 3) == numbered_bodies(3, 6)

    disk, sync = threading.Event(), scenario.broker.engine.journal.sync

    def slow_sync(heard: Callable[[], object] | None = None) -> None:
        disk.wait(5)
        sync(heard)

    monkeypatch.setattr(scenario.broker.engine.journal, "sync", slow_sync)
    await scenario.writer.publish_many("a", numbered_bodies(6, 9))
    assert await take(subscription, 3) == numbered_bodies(6, 9)
    assert scenario.broker.engine.frontier.stamped == scenario.broker.engine.frontier.durable + 3
    disk.set()
    assert await take(careful, 3) == numbered_bodies(6, 9)
    await scenario.reader.flush()
    assert subscription.received_messages == careful.received_messages == 9


async def test_live_subscribers_are_notified_when_delivered_records_were_not_stored(
    scenario: ReplayScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = await scenario.reader.subscribe("a", bookmark="0|1|", durability="live")
    await publish(scenario.writer, 0, 1)

    def full(fd: int, buffers: object, offset: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(scenario.broker.engine.journal._files, "pwritev", full)
        raw = await RawClient.connect(scenario.broker, "other")
        await raw.publish("a", [b"lost"], first=1)
        assert (await raw.read_until("error"))["code"] == "disk_full"
    await until(lambda: any(notice.code == "not_stored" for notice in scenario.reader.notices))
    assert (await take(subscription, 2))[:2] == [*numbered_bodies(0, 1), b"lost"]
    await publish(scenario.writer, 1, 2)
    assert await take(subscription, 1) == numbered_bodies(1, 2)


async def test_fully_durable_says_that_it_is_the_default_while_nothing_replicates(
    scenario: ReplayScenario,
) -> None:
    await scenario.reader.subscribe("a", bookmark="0", durability="fully_durable")
    assert scenario.reader.notices[-1].code == "fully_durable_is_persisted"
    raw = await RawClient.connect(scenario.broker, "raw")
    raw.send_command(
        {"c": "subscribe", "id": "s", "topic": "a", "bookmark": "0", "durability": "fully_durable"}
    )
    assert (await raw.read_until("processed"))["durability"] == "persisted"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"on_gap": "error"}, "on_gap"),
        ({"durability": "live"}, "durability"),
        ({"bookmark": "[0:0|1|]", "durability": "live"}, "durability"),
        ({"bookmark": "0", "on_gap": "maybe"}, "on_gap"),
        ({"bookmark": "0", "durability": "maybe"}, "durability"),
    ],
)
async def test_options_that_make_no_sense_are_refused_by_name(
    scenario: ReplayScenario, options: dict[str, str], field: str
) -> None:
    raw = await RawClient.connect(scenario.broker, "raw")
    raw.send_command({"c": "subscribe", "id": "s", "topic": "a", **options})
    error = await raw.read_until("error")
    assert (error["code"], error["details"]["field"]) == ("bad_command", field)


async def test_persisted_acks_give_a_filter_that_rarely_matches_a_recent_resume_point(
    scenario: ReplayScenario,
) -> None:
    store = MemoryBookmarkStore()
    async with AsyncClient(address_of(scenario.broker), "rare", bookmark_store=store) as rare:
        subscription = await rare.subscribe("a", filter="/n = 3", bookmark="MOST_RECENT", id="rare")
        await publish(scenario.writer, 0, 10)
        (message,) = [message async for message in _first(subscription, 1)]
        await publish(scenario.writer, 10, 1_000)
        newest = scenario.broker.engine.frontier.durable
        scenario.broker.engine.tick()
        await until(lambda: sequence_of(subscription.resume_command().bookmark) >= newest)
        assert store.most_recent("rare") is None, "the message isn't done"
        subscription.done(message)
        assert sequence_of(store.most_recent("rare")) >= newest
    acks = [target.reported_upto for target in scenario.broker.engine.subscriptions._bookmark_subscriptions]
    assert acks == []


async def _first(subscription: Subscription, number: int) -> Any:
    async for message in subscription:
        yield message
        number -= 1
        if not number:
            return


async def test_persisted_acks_come_only_when_the_point_has_moved_and_never_pass_what_waits(
    scenario: ReplayScenario,
) -> None:
    raw = await RawClient.connect(scenario.broker, "raw")
    raw.send_command({"c": "subscribe", "id": "s", "topic": "a", "filter": "/n = -1", "bookmark": "0"})
    await raw.read_until("completed")
    await scenario.records(3)
    engine = scenario.broker.engine
    for _ in range(3):
        engine.subscriptions.acknowledge()
    raw.send_command({"c": "flush", "id": "f"})
    acks = []
    while (frame := await raw.next_frame()).kind == COMMAND and b'"flush"' not in bytes(frame.payload):
        acks.append(bytes(frame.payload))
    assert acks == [
        b'{"c":"ack","ack":"persisted","of":"subscribe","id":"s","bookmark":"%s"}'
        % bookmark_of(engine.frontier.durable).encode()
    ]


async def test_a_client_that_stops_reading_holds_next_to_nothing_and_gets_everything_when_it_reads(
    scenario: ReplayScenario,
) -> None:
    # 3 MB: some ten times what the kernels and the transport take for a client that doesn't read.
    body = b"x" * 1_000
    for start in range(0, 3_000, 20):
        await scenario.writer.publish_many("a", [b"%08d" % n + body for n in range(start, start + 20)])
    await scenario.writer.flush()
    slow = await StalledSubscriber.connect(scenario.broker, "slow", "a", bookmark="0")
    client = scenario.broker.engine.roster.clients["slow"]
    # Both hold at once only when its replay waits, and then they hold until the client reads.
    await until(lambda: client.backlog.outbox.nbytes == 0 and not client.backlog.is_drained, 60)
    assert client.backlog.state.value == "live"
    assert client.subscriptions["s"].cursor.is_behind
    assert await slow.read_numbers(3_000) == list(range(3_000))
    await until(lambda: not client.subscriptions["s"].cursor.is_behind, 60)


async def test_a_reconnect_goes_on_within_its_range(scenario: ReplayScenario) -> None:
    firsts = await scenario.records(6)
    subscription = await scenario.reader.subscribe(
        "a",
        bookmark=(
            f"[{bookmark_of(firsts[1])}:{format_moment(scenario.broker.engine.clock.now_ns() + 3 * SECOND)}]"
        ),
    )
    assert await take(subscription, 5) == numbered_bodies(1, 6)
    assert subscription.resume_command().bookmark.startswith(f"({bookmark_of(firsts[-1])}:")  # type: ignore[union-attr]
    scenario.broker.engine.roster.clients["reader"].close("operator_disconnect", "a test")
    await until(lambda: scenario.reader.connections == 2 and scenario.reader.connected)
    await publish(scenario.writer, 6, 8)
    assert await take(subscription, 2) == numbered_bodies(6, 8)
    assert await read_all_sequences(subscription) == []


async def test_a_batch_says_when_it_was_accepted_without_being_asked(scenario: ReplayScenario) -> None:
    await publish(scenario.writer, 0, 1)
    subscription = await scenario.reader.subscribe("a", bookmark="0")
    async for batch in subscription.batches():
        assert isinstance(batch, Batch)
        assert batch.accepted_at > 0
        break
