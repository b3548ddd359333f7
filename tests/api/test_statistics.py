"""Figures over time through the API, whatever became of Redis."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.utils import timezone
from rest_framework.test import APIClient

from console.live import ring
from console.live.places import Place
from console.models import ClientMinute, Instance, PlaceSample
from console.services import client_hours
from tests.support.seed import seed_hours

OVERVIEW = "/api/v1/statistics?of=instance&step=1"


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis isn't there."""
    monkeypatch.setattr(
        "console.live.ring._connection", lambda: redis.Redis.from_url("unix:///nowhere/redis.sock")
    )


def sample(instance: Instance) -> None:
    at = timezone.now() - timedelta(seconds=60)
    PlaceSample.objects.create(instance=instance, kind="instance", name=instance.name, at=at, messages_in=5)


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
        now, place = int(timezone.now().timestamp()), Place(instance.name, 0, 0, 0, messages_in=7)
        ring.write(instance.name, now - 1, [("instance", place)], link)
        found: dict[str, Any] = api.get(OVERVIEW).data
    assert (found["source"], [point["messages_in"] for point in found["points"]]) == ("seconds", [7.0])


def test_before_its_minutes_a_clients_hours_answer(
    instance: Instance, api: APIClient, settings: Any, tmp_path: Path
) -> None:
    settings.SLUICE_LAKE_DIRECTORY, settings.SLUICE_MINUTE_RETENTION_DAYS = str(tmp_path), 1
    now = timezone.now()
    minute = ClientMinute.objects.create(
        instance=instance, client="board-jfk", at=now, state="live", lag_ms=7
    )
    seed_hours(instance, hours=48)
    client_hours.take_in(now)
    start = (now - timedelta(days=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = api.get(f"/api/v1/statistics?of=client&name=board-jfk&step=3600&from={start}").data
    moments = [point["at"] for point in found["points"]]
    assert found["source"] == "hours" and moments == sorted(moments) and len(moments) > 20
    assert found["points"][-1]["lag_ms"] == 7 and moments[-1] <= minute.at.timestamp()
    assert "offlined" in {point["state"] for point in found["points"]}
