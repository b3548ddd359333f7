from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import Client

from broker_core.control import last_words
from broker_core.errors import JournalError
from console.project.celery import say_alive
from console.queries.readiness import WORKER_KEY
from tests.support.fake_broker import FakeBroker


def test_healthz_needs_nothing(client: Client) -> None:
    assert client.get("/healthz").json() == {"ok": True}


@pytest.mark.django_db
def test_readyz_names_what_is_missing(client: Client) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 503
    parts = {part["name"]: part for part in answer.json()["parts"]}
    assert parts["database"]["ok"]
    assert parts["broker"]["problem"] == "broker_away"


@pytest.mark.django_db
def test_readyz_names_by_what_the_broker_ended(client: Client, tmp_path: Path, settings: Any) -> None:
    settings.SLUICE_RUN_DIRECTORY = tmp_path
    error = JournalError("journal_taken", "The lock was removed.")
    last_words.note(tmp_path / f"{settings.SLUICE_INSTANCE}.sock", error, 0)
    parts = {part["name"]: part for part in client.get("/readyz").json()["parts"]}
    assert (parts["broker"]["ok"], parts["broker"]["problem"]) == (False, "journal_taken")


def test_readyz_is_ready_when_all_answer(client: Client, broker: FakeBroker, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as connection:
        connection.delete(WORKER_KEY)
    assert [part["name"] for part in client.get("/readyz").json()["parts"] if not part["ok"]] == ["worker"]
    say_alive()
    answer: Any = client.get("/readyz")
    assert (answer.status_code, answer.json()["ok"]) == (200, True)


def test_answers_carry_a_request_id_and_a_strict_policy(client: Client, settings: Any) -> None:
    answer = client.get("/healthz")
    assert len(answer["X-Request-Id"]) == 32
    policy = answer["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert settings.REST_FRAMEWORK["DEFAULT_RENDERER_CLASSES"] == ["rest_framework.renderers.JSONRenderer"]
