from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from broker_core.documents.clients import ClientEntry
from broker_core.documents.instance import Snapshot
from broker_core.documents.system_records import DecisionEntry
from console.models import ClientSample, Decision, Instance, RevisionReport
from console.services import broker_reports
from tests.support.fake_broker import make_client, make_snapshot

START_MS = 1_790_000_000_000


def snapshot(second: int, *clients: ClientEntry, revision: int = 1, pid: int = 7) -> Snapshot:
    return make_snapshot(START_MS + 1000 * second, *clients, revision=revision, pid=pid)


def test_client_is_sampled_each_ten_seconds(instance: Instance) -> None:
    for second in range(31):
        broker_reports.record_report(snapshot(second, make_client("slow", "offlined", 100 + second)))
    samples = ClientSample.objects.order_by("at")
    assert [sample.lag_messages for sample in samples] == [100, 110, 120, 130]
    assert {sample.state for sample in samples} == {"offlined"}


def test_the_log_and_how_far_it_goes_are_noted(instance: Instance) -> None:
    log = uuid4()
    for second, durable in ((0, 5), (3, 6), (10, 7)):
        made = snapshot(second)
        status = msgspec.structs.replace(made.status, log=str(log), durable_sequence=durable)
        broker_reports.record_report(msgspec.structs.replace(made, status=status))
        instance.refresh_from_db()
        assert (instance.log, instance.frontier) == (log, {0: 5, 3: 5, 10: 7}[second])


def test_a_caught_up_client_is_sampled_once_a_minute_whatever_is_sent_to_it(instance: Instance) -> None:
    for second in range(0, 121, 10):
        broker_reports.record_report(snapshot(second, make_client("idle")))
    assert ClientSample.objects.count() == 3


def test_client_that_comes_to_rest_is_sampled_at_once(instance: Instance) -> None:
    for second, lag in ((0, 5), (10, 0), (20, 0), (30, 9)):
        broker_reports.record_report(snapshot(second, make_client("one", lag=lag)))
    assert [sample.lag_messages for sample in ClientSample.objects.order_by("at")] == [5, 0, 9]


def test_second_process_does_not_store_a_sample_twice(instance: Instance) -> None:
    broker_reports.record_report(snapshot(0, make_client("one", lag=5)))
    broker_reports._report_caches.clear()
    broker_reports.record_report(snapshot(3, make_client("one", lag=6)))
    assert ClientSample.objects.count() == 1


def test_most_reports_ask_nothing_of_the_database(instance: Instance, django_assert_num_queries: Any) -> None:
    broker_reports.record_report(snapshot(0, make_client("one")))
    with django_assert_num_queries(0):
        for second in range(1, 10):
            broker_reports.record_report(snapshot(second, make_client("one")))


def test_revision_is_stored_when_it_changes(instance: Instance) -> None:
    for second, revision in ((0, 1), (1, 1), (2, 2), (12, 2)):
        broker_reports.record_report(snapshot(second, revision=revision))
    first, second_report = RevisionReport.objects.order_by("pk")
    assert (first.number, second_report.number) == (1, 2)
    assert second_report.seen_at - second_report.reported_at == timedelta(seconds=10)


def test_restarted_broker_reports_anew(instance: Instance) -> None:
    broker_reports.record_report(snapshot(0, pid=7))
    broker_reports.record_report(snapshot(10, pid=8))
    assert [report.pid for report in RevisionReport.objects.order_by("pk")] == [7, 8]


@pytest.mark.django_db
def test_broker_of_another_database_is_ignored() -> None:
    assert not broker_reports.record_report(snapshot(0, make_client("one")))
    assert ClientSample.objects.count() == 0


def test_decision_is_stored_whole(instance: Instance) -> None:
    decision = DecisionEntry(
        at=START_MS,
        client="slow",
        transport="tcp",
        pool="instance",
        action="offline",
        reason="slow_client_pool_memory",
        rule="amps.message_memory_limit",
        revision=3,
        mode="enforce",
        signal="pool_memory",
        observed=2**40,
        limit=2**39,
        unit="bytes",
        sentence="It was.",
        kept=5,
    )
    assert broker_reports.record_decisions([decision]) == 1
    stored = Decision.objects.get()
    assert (stored.client, stored.revision, stored.observed) == ("slow", 3, 2**40)
    assert stored.at == datetime.fromtimestamp(START_MS / 1000, UTC)
    assert msgspec.convert(stored.details, DecisionEntry) == decision
    assert broker_reports.record_decisions([]) == 0
