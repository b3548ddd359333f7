"""Records that a real broker writes each second about clients with a backlog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from broker_core.documents.system_records import (
    MAX_ROWS,
    TrafficEntry,
    TrafficRowKey,
    TrafficSample,
    unpack_samples,
)
from broker_core.engine import system_records
from broker_core.engine.policy_loop import MIN_FULL_CHECK_MS
from broker_core.engine.system_records import SystemRecordBuffer
from tests.support.brokers import running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with
from tests.support.stalled import StalledSubscriber


class RecordedSamples:
    """Samples that the broker is about to journal."""

    def __init__(self, passes_on: Callable[[SystemRecordBuffer, list[TrafficEntry]], None]) -> None:
        self._passes_on = passes_on
        self.entries: list[TrafficEntry] = []

    def looked(self, events: SystemRecordBuffer, entries: list[TrafficEntry]) -> None:
        self.entries += entries
        self._passes_on(events, entries)

    def of(self, name: str) -> list[tuple[TrafficRowKey, TrafficSample]]:
        rows = []
        for entry in self.entries:
            whose, columns = unpack_samples(entry)
            rows += list(zip(whose, map(TrafficSample._make, zip(*columns, strict=True)), strict=True))
        return [row for row in rows if row[0].name == name]


@pytest.fixture
def recorded_samples(monkeypatch: pytest.MonkeyPatch) -> RecordedSamples:
    made = RecordedSamples(SystemRecordBuffer.add_traffic)
    monkeypatch.setattr(
        SystemRecordBuffer, "add_traffic", lambda events, entries: made.looked(events, entries)
    )
    return made


async def test_a_stalled_client_is_in_it_each_second_until_nothing_waits_and_others_are_not(
    tmp_path: Path, recorded_samples: RecordedSamples
) -> None:
    policy = policy_with()
    policy = replace(policy, instance=replace(policy.instance, unjournaled_topics=("t",)))
    async with running_broker(tmp_path, policy) as broker:
        stalled = await StalledSubscriber.connect(broker, "stalled", "t")
        feed = await RawClient.connect(broker, "feed")
        use = broker.engine.guard.find_usage("stalled")
        assert use is not None
        published = 0
        while not use.memory:  # the kernels take some megabytes first
            await feed.publish("t", [b"x" * 5_000] * 200)
            published += 200
            await asyncio.sleep(0.05)
        before = len(recorded_samples.of("stalled"))
        await until(lambda: len(recorded_samples.of("stalled")) >= before + 3)
        (who, _), *_, (_, newest) = recorded_samples.of("stalled")
        assert (who.transport, who.topic) == ("tcp", "t")
        assert newest.memory == use.memory > 0
        assert (newest.matched_messages, newest.matched_bytes) == (published, published * 5_000)
        assert newest.matched_bytes == newest.acknowledged_bytes + newest.owed_bytes
        assert newest.unjournaled == newest.owed_messages > 0
        assert newest.oldest_at <= newest.at
        assert newest.blocked_since
        looks = [figures.at for _, figures in recorded_samples.of("stalled")]
        assert all(later - earlier >= MIN_FULL_CHECK_MS for earlier, later in pairwise(looks)), (
            "one a second, however few they are"
        )
        await stalled.read_bodies(published)
        await until(lambda: recorded_samples.of("stalled")[-1][1].memory == 0)
        # One look says that nothing waits any more; what may follow is about bytes on their way.
        assert recorded_samples.of("stalled")[-1][1].messages == 0
        assert recorded_samples.of("feed") == []


async def test_more_than_a_second_may_hold_is_counted_and_left_out(
    tmp_path: Path, recorded_samples: RecordedSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_records, "MAX_SAMPLES_PER_S", 2)
    policy = policy_with()
    policy = replace(policy, instance=replace(policy.instance, unjournaled_topics=("t",)))
    async with running_broker(tmp_path, policy) as broker:
        stalled = [await StalledSubscriber.connect(broker, f"stalled-{n}", "t") for n in range(4)]
        feed = await RawClient.connect(broker, "feed")
        while not any(entry.left_out for entry in recorded_samples.entries):
            await feed.publish("t", [b"x" * 5_000] * 100)
            await asyncio.sleep(0.1)
        assert len(stalled) == 4
        assert max(entry.rows for entry in recorded_samples.entries) <= 2 <= MAX_ROWS
