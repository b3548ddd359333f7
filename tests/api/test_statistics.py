"""Statistics over time through the API, also after Redis lost its data."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone
from rest_framework.test import APIClient

from console.live import seconds_ring
from console.live.resource_points import ResourcePoint
from console.models import ClientHour, ClientMinute, Instance, ResourceSample

OVERVIEW = "/api/v1/statistics?of=instance&step=1"


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the ring at a missing Redis."""
    monkeypatch.setattr(
        "console.live.seconds_ring._connection",
        lambda: redis.Redis.from_url("unix:///nowhere/redis.sock"),
    )


def sample(instance: Instance) -> None:
    at = timezone.now() - timedelta(seconds=60)
    ResourceSample.objects.create(
        instance=instance, kind="instance", name=instance.name, at=at, messages_in=5
    )


def test_without_redis_an_overview_of_nothing_is_an_empty_series(
    instance: Instance, api: APIClient, away: None
) -> None:
    answer = api.get(OVERVIEW)
    assert (answer.status_code, answer.data["points"]) == (200, [])


def test_without_redis_samples_answer(instance: Instance, api: APIClient, away: None) -> None:
    sample(instance)
    answer = api.get(OVERVIEW)
    assert (answer.status_code, answer.data["source"], answer.data["step"]) == (200, "samples", 10)
    assert [point["messages_in"] for point in answer.data["points"]] == [5.0]


def test_while_the_ring_is_empty_samples_answer_and_then_the_ring(
    instance: Instance, api: APIClient, redis_url: str
) -> None:
    with redis.Redis.from_url(redis_url) as link:
        link.flushdb()
        sample(instance)
        assert api.get(OVERVIEW).data["source"] == "samples"
        now, place = int(timezone.now().timestamp()), ResourcePoint(instance.name, 0, 0, 0, messages_in=7)
        seconds_ring.write_second(instance.name, now - 1, [("instance", place)], link)
        found: dict[str, Any] = api.get(OVERVIEW).data
    assert (found["source"], [point["messages_in"] for point in found["points"]]) == ("seconds", [7.0])


def test_hours_answer_once_and_minutes_wherever_an_hour_is_missing(
    instance: Instance, api: APIClient, settings: Any
) -> None:
    settings.SLUICE_MINUTE_RETENTION_DAYS = 1
    now = timezone.now()
    hour = now.replace(minute=0, second=0, microsecond=0)

    def moment(hours: int, minute: int = 0) -> datetime:
        return hour - timedelta(hours=hours) + timedelta(minutes=minute)

    for transport, lag in (("tcp", 900), ("websocket", 20)):
        for hours in (48, 5):
            ClientHour.objects.create(
                instance=instance,
                client="one",
                transport=transport,
                at=moment(hours),
                lag_ms=lag,
                rate_max=lag / 10,
                state="live",
            )
    for hours, lag in ((20, 7), (5, 800), (1, 3)):
        at = moment(hours, 30)
        ClientMinute.objects.create(
            instance=instance,
            client="one",
            at=at,
            lag_ms=lag,
            state="live",
            rate_out_messages=lag + 1 if lag < 800 else None,
        )

    def told(days: int, step: int) -> tuple[str, list[tuple[datetime, int, float | None]]]:
        start = (now - timedelta(days=days)).isoformat().replace("+00:00", "Z")
        found = api.get(f"/api/v1/statistics?of=client&name=one&step={step}&from={start}").data
        return found["source"], [
            (datetime.fromtimestamp(point["at"], UTC), point["lag_ms"], point["rate_out_messages"])
            for point in found["points"]
        ]

    hours = [(moment(48), 900, 90), (moment(20), 7, 8), (moment(5), 900, 90), (moment(1), 3, 4)]
    assert told(3, 3600) == ("hours", hours)
    # The range equals the retention of minutes; the caller's clock is slightly behind.
    minutes = [(moment(20, 30), 7, 8), (moment(5, 30), 800, None), (moment(1, 30), 3, 4)]
    assert told(1, 60) == ("minutes", minutes)
