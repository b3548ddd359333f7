"""A broker's reporter while the database is unavailable: it bounds, counts and reports pending rows, then
stores them once.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError

from broker_core.broker import Broker
from broker_core.delivery.account import DiscardCause
from broker_core.delivery.loss_ledger import tally_entries
from broker_core.documents.instance import DatabaseEntry
from broker_core.documents.system_records import DecisionEntry
from broker_core.engine.system_records import MAX_UNSTORED_DECISIONS
from console.models import Decision, Instance, LossRecord
from console.reporters import snapshot_reporter as reporting
from console.reporters.database_thread import DatabaseThread
from console.reporters.snapshot_reporter import SnapshotReporter
from console.services import broker_reports, policies
from console.services.loss_ledger import record_losses
from tests.support.broker_simulation import outbox_entry
from tests.support.brokers import running_broker, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]


def decide(broker: Broker, number: int) -> None:
    """Add `number` decisions to the broker, as rules do."""
    decisions = broker.engine.decisions
    for _ in range(number):
        decisions.add_entry(
            DecisionEntry(
                id=decisions.make_id(),
                at=1,
                client="slow",
                transport="tcp",
                pool="instance",
                action="disconnect",
                reason="slow_client",
                rule="r",
                mode="enforce",
                revision=1,
                signal="age",
                observed=1,
                limit=1,
                unit="ms",
                sentence="It was too slow.",
            )
        )


def entry_of(broker: Broker) -> DatabaseEntry:
    entry = broker.statistics.database
    assert entry is not None
    return entry


async def report_until(reporter: SnapshotReporter, broker: Broker, condition: Any) -> None:
    async def tick() -> None:
        while True:
            await reporter.report(broker.statistics.collect_snapshot())
            await asyncio.sleep(0.05)

    ticking = asyncio.create_task(tick())
    try:
        await until(condition, seconds=60)
    finally:
        ticking.cancel()


async def test_what_the_memory_has_no_room_for_is_counted_and_the_rest_is_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sync_to_async(policies.ensure_instance)("test-1")
    async with running_broker(tmp_path) as broker:
        wanted = {"policy": broker.engine.policy.to_dict(), "staged": None}
        monkeypatch.setattr(policies, "policy_orders", lambda _: wanted)
        reporter = SnapshotReporter(broker)
        record, away = broker_reports.record_report, True

        def refused(*arguments: Any) -> bool:
            if away:
                raise OperationalError("the connection was refused")
            return record(*arguments)

        monkeypatch.setattr(broker_reports, "record_report", refused)
        decide(broker, 10)
        await report_until(reporter, broker, lambda: entry_of(broker).waiting == 10 and entry_of(broker).code)
        entry = entry_of(broker)
        assert entry.code == "database_away" and "refused" in entry.message and entry.away_since
        decide(broker, MAX_UNSTORED_DECISIONS + 90)
        await report_until(reporter, broker, lambda: entry_of(broker).dropped == 100)
        assert entry_of(broker).waiting == MAX_UNSTORED_DECISIONS and entry_of(broker).dropped_at
        away = False
        await report_until(
            reporter, broker, lambda: not entry_of(broker).code and not entry_of(broker).waiting
        )
        assert entry_of(broker).dropped == 100, "each dropped decision is counted once"
        await reporter.close()
        assert await sync_to_async(Decision.objects.count)() == MAX_UNSTORED_DECISIONS


async def test_thousands_of_decisions_within_a_second_are_all_stored(tmp_path: Path) -> None:
    """A policy that offlines 10,000 clients makes as many decisions at once."""
    await sync_to_async(policies.ensure_instance)("test-1")
    async with running_broker(tmp_path) as broker:
        wanted = {"policy": broker.engine.policy.to_dict(), "staged": None}
        reporter = SnapshotReporter(broker)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(policies, "policy_orders", lambda _: wanted)
            for _ in range(2):
                decide(broker, 5_000)
                await report_until(reporter, broker, lambda: not entry_of(broker).waiting)
            await reporter.close()
        assert (entry_of(broker).dropped, entry_of(broker).dropped_at) == (0, None)
        assert await sync_to_async(Decision.objects.count)() == 10_000


async def test_a_database_that_stands_still_is_named_and_holds_up_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sync_to_async(policies.ensure_instance)("test-1")
    monkeypatch.setattr(reporting, "ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(reporting, "CLOSE_TIMEOUT_S", 0.5)
    goes_on = threading.Event()
    async with running_broker(tmp_path) as broker:
        reporter = SnapshotReporter(broker, DatabaseThread("stands still"))
        monkeypatch.setattr(broker_reports, "record_report", lambda *_: goes_on.wait(60))
        decide(broker, 1)
        await report_until(reporter, broker, lambda: entry_of(broker).code == "database_away")
        assert "doesn't answer" in entry_of(broker).message
        async with asyncio.timeout(30):
            await reporter.close()
        goes_on.set()


async def test_a_database_that_lacks_the_instance_gets_it_and_then_its_decisions_and_losses(
    tmp_path: Path,
) -> None:
    """An empty database may replace the previous one between two reports."""
    async with running_broker(tmp_path) as broker:
        reporter = SnapshotReporter(broker)
        decide(broker, 3)
        broker.engine.ledger.record_loss(
            1,
            "slow",
            "s",
            "t",
            DiscardCause.DISCARDED,
            "r",
            tally_entries([outbox_entry(9, sequence=5, count=3)]),
        )
        broker.engine.ledger.close_intervals()
        await report_until(reporter, broker, lambda: not reporter._waiting)
        await reporter.close()
        assert await sync_to_async(Decision.objects.count)() == 3
        assert await sync_to_async(LossRecord.objects.count)() == 1
        assert entry_of(broker).dropped == 0


@pytest.mark.parametrize("record", [broker_reports.record_decisions, record_losses])
def test_entries_of_an_unknown_instance_are_refused_and_so_kept_by_the_broker(record: Any) -> None:
    with pytest.raises(Instance.DoesNotExist):
        record([object()], "nobody")
