"""Directories that released code has left behind are opened by today's and read whole.

How they were made: make_golden.py.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from broker_core.client import AsyncClient, FileBookmarkStore, FilePublishStore
from broker_core.client.subscription import Subscription
from broker_core.journal.frontier_file import read_mark
from broker_core.journal.index_sidecar import load_summary
from broker_core.journal.removal_records import read_removals
from broker_core.journal.segment import index_path, parse_segment_path
from broker_core.journal.segment_copies import verify_segment
from tests.durability.make_golden import MESSAGES, PUBLISHERS, READ
from tests.support.brokers import address_of, ask, running_broker, tcp_policy
from tests.torture.broker import INSTANCE
from tests.torture.history import History, body_of, check, topic_of

GOLDEN = Path(__file__).with_name("golden")
FORMATS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
LAST = MESSAGES * len(PUBLISHERS)


@pytest.fixture(params=FORMATS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy, as its broker left it."""
    shutil.copytree(GOLDEN / request.param, tmp_path, dirs_exist_ok=True)
    return tmp_path


async def bodies(subscription: Subscription, number: int) -> list[tuple[int, str, bytes]]:
    """The next messages, with sequence and topic."""
    found = []
    async with asyncio.timeout(60):
        async for message in subscription:
            found.append((message.sequence, message.topic, message.body))
            if len(found) == number:
                break
    return found


def test_every_segment_is_whole_and_its_sidecar_is_believed(home: Path) -> None:
    segments = [*home.glob("*/*.journal"), *home.glob("*/*.journal.gz")]
    kinds = {(path.parent.name, path.suffix) for path in segments}
    assert kinds == {(place, form) for place in ("journal", "archive") for form in (".journal", ".gz")}
    for path in segments:
        report = verify_segment(path)
        assert report.is_ok, report
        if index_path(path).exists():
            first = parse_segment_path(path)[1]
            index = load_summary(index_path(path), INSTANCE, first)
            assert index is not None
            assert (index.records, index.last_sequence) == (report.records, report.last_sequence)


async def test_a_broker_of_today_opens_it_clean_and_reads_it_whole(home: Path) -> None:
    mark = read_mark(home / "journal", INSTANCE)
    assert mark is not None and mark.log is not None and mark.sequence >= LAST
    before = {path.name for path in home.glob("*/*.journal*")}
    async with running_broker(home, tcp_policy()) as broker:
        journal = broker.engine.journal
        assert journal.recovery.clean and journal.recovery.reason == ""
        assert journal.recovery.scanned_segments <= 1, "sidecars are used"
        assert journal.identity == mark.log and journal.epoch > mark.epoch
        assert {one.name for one in journal.segments()} == before
        first = journal.first_sequence
        assert [(one.first, one.last) for one in read_removals(home / "journal", INSTANCE)] == [
            (1, first - 1)
        ]
        history = History(removed_upto=first - 1)
        history.published = dict.fromkeys(PUBLISHERS, MESSAGES)
        history.acknowledged = dict(history.published)
        assert journal.publishers.numbers() == history.acknowledged
        async with AsyncClient(address_of(broker), "today") as client:
            subscription = await client.subscribe("t.>", bookmark="0")
            async for batch in subscription.batches(until_completed=True):
                for topic, body, sequence in zip(
                    batch.names(), batch.bodies(), batch.sequences(), strict=True
                ):
                    record = history.record(int(sequence), topic, bytes(body), batch.accepted_at)
                    assert record is not None
                    history.log.append(record)
            assert subscription.gaps == [], "the beginning is the oldest record there is"
        assert len(history.log) == LAST - first + 1
        assert check(history) == []


async def test_its_clients_go_on_where_they_were(home: Path) -> None:
    async with running_broker(home, tcp_policy()) as broker:
        first = broker.engine.journal.first_sequence
        async with AsyncClient(
            address_of(broker), "reader", bookmark_store=FileBookmarkStore(home / "stores" / "marks")
        ) as reader:
            marked = await reader.subscribe("t.>", id="marked", bookmark="MOST_RECENT")
            durable = await reader.subscribe("t.>", durable="kept", ack="client")
            for subscription in (marked, durable):
                got = await bodies(subscription, LAST - first + 1)
                assert got[0][0] == first and first > READ, "what was removed meanwhile is a gap"
                assert got[-1][1:] == (topic_of(MESSAGES), body_of(PUBLISHERS[-1], MESSAGES))
            assert [gap.last for gap in marked.gaps] == [f"{INSTANCE}|{first - 1}|"]
        (replay,) = await ask(broker, "replays")
        assert (replay["name"], replay["client"]) == ("replayed", "reader")
        (kept,) = await ask(broker, "durables")
        assert (kept["name"], kept["client"]) == ("kept", "reader")
        again = FilePublishStore(home / "stores" / "unsent")
        async with AsyncClient(address_of(broker), "carla", publish_store=again) as client:
            await client.flush()
            sent = await client.subscribe("t.>", bookmark=f"{INSTANCE}|{LAST}|")
            assert [body for _, _, body in await bodies(sent, 3)] == [body_of("carla", n) for n in (1, 2, 3)]


async def test_a_publisher_that_repeats_is_not_stored_twice(home: Path) -> None:
    async with running_broker(home, tcp_policy()) as broker:
        async with AsyncClient(address_of(broker), PUBLISHERS[0]) as client:
            await client.publish(topic_of(MESSAGES + 1), body_of(PUBLISHERS[0], MESSAGES + 1))
            await client.flush()
        assert broker.engine.journal.publishers.numbers()[PUBLISHERS[0]] == MESSAGES + 1
