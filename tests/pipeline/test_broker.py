"""The pipeline beside a real broker: what it needs is held, and what was removed is known."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.journal.files import Files
from broker_core.journal.leases import Lease, drop_lease, write_lease
from broker_core.journal.removals import read_removals
from tests.support.brokers import address_of, ask, running_broker

MINUTE = 60_000_000_000


async def publish(broker: Broker, segments: int) -> None:
    """Messages until that many segments are sealed."""
    async with AsyncClient(address_of(broker), "writer") as client:
        while sum(one.state != "current" for one in broker.engine.journal.segments()) < segments:
            await client.publish_many("orders.new", [b"x" * 1_000] * 500)
            await client.flush()


async def test_a_lease_is_seen_in_needed_by_and_holds_back_removal(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await publish(broker, 3)
        journal = broker.engine.journal
        names = [one.name for one in journal.segments() if one.state != "current"]
        second = journal.segments()[1].first_sequence
        lease = Lease("lake on here (7)", second, time.time_ns() + MINUTE)
        write_lease(Files(), journal.directory, "test-1", "lake.7", lease)
        plan = await ask(broker, "journal_plan", action="remove", age_s=0)
        assert plan["chosen"] == names[:1]
        assert plan["skipped"][0]["reason"] == "pipeline"
        assert plan["skipped"][0]["why"].startswith("needed by pipeline lake on here (7) until 20")
        listed = await ask(broker, "journals")
        assert [bool(one["pinned_by"]) for one in listed] == [False] + [True] * (len(listed) - 1)
        with pytest.raises(AssertionError, match="journal_in_use"):
            await ask(broker, "journal_remove", names=names, age_s=0)
        drop_lease(journal.directory, "test-1", "lake.7")
        gone = await ask(broker, "journal_remove", names=names, age_s=0)
        (told,) = read_removals(journal.directory, "test-1")
        assert (told.first, told.last, told.records) == (1, gone["last_sequence"], gone["records"])
        assert abs(told.removed_at - time.time_ns()) < 10 * MINUTE
