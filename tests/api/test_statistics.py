"""Figures over time through the API, whatever became of Redis."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone
from rest_framework.test import APIClient

from console.live import ring
from console.live.places import Place
from console.models import Instance, PlaceSample

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
