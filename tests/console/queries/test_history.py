from __future__ import annotations

from datetime import UTC, datetime, timedelta

from console.models import ClientSample, Instance
from console.queries import history

START = datetime(2026, 11, 1, tzinfo=UTC)


def store(instance: Instance, *lags: int) -> None:
    ClientSample.objects.bulk_create(
        ClientSample(
            instance=instance,
            client="one",
            at=START + timedelta(seconds=10 * number),
            lag_messages=lag,
            state="offlined" if lag > 90 else "live",
        )
        for number, lag in enumerate(lags)
    )


def test_longer_step_keeps_the_worst(instance: Instance) -> None:
    store(instance, 1, 99, 3, 4, 5, 6)
    points = history.client_samples(instance, "one", START, START + timedelta(minutes=1), 30)
    assert [(point["lag_messages"], point["state"]) for point in points] == [(99, "offlined"), (6, "live")]


def test_range_ends_before_its_end(instance: Instance) -> None:
    store(instance, 1, 2, 3)
    points = history.client_samples(
        instance, "one", START + timedelta(seconds=10), START + timedelta(seconds=20)
    )
    assert [point["lag_messages"] for point in points] == [2]


def test_long_range_is_answered_in_a_bounded_number_of_points(instance: Instance) -> None:
    store(instance, *range(3_000))
    points = history.client_samples(instance, "one", START, START + timedelta(seconds=30_000))
    assert len(points) <= history.MAX_POINTS
    assert points[-1]["lag_messages"] == 2_999
