from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker_core.documents.clients import ClientEntry
from console.models import ClientHour, ClientMinute, ClientSample, Instance, ResourceSample
from console.queries.statistics import time_series
from console.services import broker_reports, rollup
from tests.support.fake_broker import make_client, make_pool, make_snapshot, make_transport

START = datetime(2026, 11, 1, 10, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def report(second: int, *clients: ClientEntry, messages_in: float = 0, p99_ms: float | None = None) -> None:
    delay = None if p99_ms is None else {"p50_ms": 1.0, "p99_ms": p99_ms, "messages": 9}
    broker_reports.record_report(
        make_snapshot(
            int(START.timestamp() + second) * 1000,
            *clients,
            rates={"messages_in": messages_in},
            delay=delay,
            transports=[make_transport("tcp")],
            pools=[make_pool("instance", memory_used=second, memory_limit=1_000)],
        )
    )


def test_a_minute_keeps_the_worst_of_clients_and_mean_rates_and_peaks_of_places(instance: Instance) -> None:
    for second in range(0, 60, 10):
        state = "offlined" if second == 20 else "live"
        client = make_client("one", state, 100 + second, rate_out_messages=10.0 * second)
        report(second, client, messages_in=second, p99_ms=second or None)
    assert rollup.write_rollups(START + timedelta(seconds=91)) == 4
    minute = ClientMinute.objects.get()
    assert (minute.at, minute.lag_messages, minute.state) == (START, 150, "offlined")
    assert minute.rate_out_messages == 250
    place = ResourceSample.objects.get(kind="instance", seconds=60)
    assert (place.messages_in, place.memory_used, place.lag_messages) == (25.0, 50, 150)
    assert (place.delay_p50_ms, place.delay_p99_ms) == (1.0, 50.0)
    points = time_series(instance, "instance", "sluice-1", START, START + MINUTE, 10, START + MINUTE)[
        "points"
    ]
    assert [point["delay_p99_ms"] for point in points] == [None, 10, 20, 30, 40, 50]


def test_a_minute_is_made_once_and_not_before_late_samples_may_come(instance: Instance) -> None:
    report(0, make_client("one", lag=5))
    assert rollup.write_rollups(START + timedelta(seconds=89)) == 0
    made = rollup.write_rollups(START + timedelta(seconds=90))
    assert made == 4
    assert rollup.write_rollups(START + timedelta(seconds=120)) == 0
    assert ClientMinute.objects.count() == 1


def test_minutes_that_nobody_rolled_up_are_made_up_for(instance: Instance) -> None:
    for minute in range(45):
        report(60 * minute, make_client("one", lag=minute + 1))
    rollup.write_rollups(START + 60 * MINUTE)
    rollup.write_rollups(START + 60 * MINUTE)
    assert ClientMinute.objects.count() == 45


def test_after_hours_without_a_broker_minutes_go_on_and_places_have_hours(instance: Instance) -> None:
    report(0, make_client("one", lag=5), messages_in=60)
    late = 3 * 3600
    report(late, make_client("one", lag=7), messages_in=30)
    for _ in range(2):
        rollup.write_rollups(START + timedelta(seconds=late + 91))
    assert list(ClientMinute.objects.values_list("lag_messages", flat=True)) == [5, 7]
    hour = ResourceSample.objects.get(kind="instance", seconds=3600)
    assert (hour.at, hour.messages_in) == (START, 60.0)


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        (ClientSample, timedelta(hours=24)),
        (ClientMinute, timedelta(days=14)),
        (ClientHour, timedelta(days=92)),
    ],
)
def test_what_was_kept_long_enough_goes(model: Any, kept: timedelta, instance: Instance) -> None:
    for age in (kept - MINUTE, kept + MINUTE):
        model.objects.create(instance=instance, client="one", at=START - age, state="live")
    assert rollup.delete_old_samples(START) == 1
    assert model.objects.get().at == START - kept + MINUTE


def test_places_go_by_how_fine_they_are(instance: Instance) -> None:
    for seconds, days in ((10, 0.5), (10, 2), (60, 2), (60, 15)):
        ResourceSample.objects.create(
            instance=instance, kind="pool", name="instance", seconds=seconds, at=START - timedelta(days=days)
        )
    assert rollup.delete_old_samples(START) == 2
    assert sorted(ResourceSample.objects.values_list("seconds", flat=True)) == [10, 60]


def test_a_long_range_is_answered_from_minutes_and_a_short_one_from_samples(instance: Instance) -> None:
    for minute in range(3):
        for second in (0, 10):
            report(60 * minute + second, make_client("one", lag=10 * minute + second + 1))
    now = START + 4 * MINUTE
    rollup.write_rollups(now)
    fine = time_series(instance, "client", "one", START, now, 10, now)
    assert (fine["source"], [point["lag_messages"] for point in fine["points"]]) == (
        "samples",
        [1, 11, 11, 21, 21, 31],
    )
    coarse = time_series(instance, "client", "one", START, now, 60, now)
    assert (coarse["source"], [point["lag_messages"] for point in coarse["points"]]) == (
        "minutes",
        [11, 21, 31],
    )
    old = time_series(instance, "pool", "instance", START - timedelta(days=10), now, 10, now)
    assert (old["source"], old["step"] >= 432, len(old["points"])) == ("minutes", True, 1)


def test_without_redis_seconds_are_answered_from_samples(
    instance: Instance, settings: Any, monkeypatch: Any
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1"
    monkeypatch.setattr("console.live.redis_link._link", None)
    report(0, make_client("one", lag=5))
    found = time_series(instance, "client", "one", START, START + MINUTE, 1, START + MINUTE)
    assert (found["source"], found["step"], len(found["points"])) == ("samples", 10, 1)
    monkeypatch.setattr("console.live.redis_link._link", None)
