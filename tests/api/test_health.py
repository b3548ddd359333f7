from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import Client
from django.utils import timezone

from broker_core.control import exit_report
from broker_core.errors import JournalError
from console.live.workers import pulse_key, worker_key
from console.models import ActionRun, Instance
from console.project.celery import refresh_worker_key
from console.queries import system_conditions
from console.queries.readiness import WORKER_KEY
from console.queue_names import CHORES_QUEUE, USUAL_QUEUE
from console.tasks import pulse
from tests.support.fake_broker import FakeBroker
from tests.support.redis_process import redis_server


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
    exit_report.write_exit_report(tmp_path / f"{settings.SLUICE_INSTANCE}.sock", error, 0)
    parts = {part["name"]: part for part in client.get("/readyz").json()["parts"]}
    assert (parts["broker"]["ok"], parts["broker"]["problem"]) == (False, "journal_taken")


def test_readyz_is_ready_when_all_answer(client: Client, broker: FakeBroker, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as connection:
        connection.delete(WORKER_KEY, worker_key(CHORES_QUEUE), pulse_key(""), pulse_key(CHORES_QUEUE))
    missed = [part["name"] for part in client.get("/readyz").json()["parts"] if not part["ok"]]
    assert missed == ["worker", "worker chores"]
    refresh_worker_key()
    answer: Any = client.get("/readyz")
    assert (answer.status_code, answer.json()["ok"]) == (200, True)


def test_readyz_calls_no_redis_ok_that_refuses_writes(
    client: Client, broker: FakeBroker, settings: Any, tmp_path: Path
) -> None:
    settings.REDIS_URL = f"unix://{tmp_path / 'redis.sock'}"
    with redis_server(settings.REDIS_URL, tmp_path), redis.Redis.from_url(settings.REDIS_URL) as connection:
        refresh_worker_key()
        connection.config_set("maxmemory", "1")
        answer: Any = client.get("/readyz")
        parts = {part["name"]: part for part in answer.json()["parts"]}
        assert (answer.status_code, parts["redis"]["ok"]) == (503, False)
        assert parts["redis"]["problem"] == "redis_refuses_writes" and "maxmemory" in parts["redis"]["fix"]
        connection.config_set("maxmemory", "0")
        parts = {part["name"]: part for part in client.get("/readyz").json()["parts"]}
        assert parts["redis"]["ok"]


@pytest.mark.parametrize(("queue", "name"), [("celery", "worker"), (CHORES_QUEUE, "worker chores")])
def test_readyz_says_when_a_queue_does_not_move(
    client: Client, broker: FakeBroker, redis_url: str, queue: str, name: str
) -> None:
    refresh_worker_key()
    with redis.Redis.from_url(redis_url) as connection:
        connection.set(pulse_key(queue), connection.time()[0] - 90)
    answer: Any = client.get("/readyz")
    (stuck,) = [part for part in answer.json()["parts"] if not part["ok"]]
    assert (answer.status_code, stuck["name"]) == (503, name)
    assert stuck["problem"].startswith("queue_stuck: the workers started no task for 9") and stuck["fix"]
    (told,) = [one for one in system_conditions.current_conditions() if one.key == name]
    assert "doesn't move" in told.word
    pulse(queue)
    assert client.get("/readyz").status_code == 200


def test_a_queue_whose_slots_are_busy_with_runs_is_named_and_is_no_reason_to_restart_the_console(
    client: Client, broker: FakeBroker, redis_url: str, instance: Instance
) -> None:
    refresh_worker_key()
    with redis.Redis.from_url(redis_url) as connection:
        connection.set(pulse_key(USUAL_QUEUE), connection.time()[0] - 90)
    run = ActionRun.objects.create(
        instance=instance,
        kind="pipeline",
        state="running",
        actor="maria",
        actor_kind="person",
        heard_at=timezone.now(),
    )
    answer: Any = client.get("/readyz")
    (part,) = [part for part in answer.json()["parts"] if part["name"] == "worker"]
    assert (answer.status_code, part["ok"]) == (200, True)
    assert part["problem"].startswith("queue_stuck") and "Cancel" in part["fix"]
    (told,) = [one for one in system_conditions.current_conditions() if one.key == "worker"]
    assert "doesn't move" in told.word
    ActionRun.objects.filter(pk=run.pk).update(heard_at=timezone.now() - timedelta(minutes=2))
    assert client.get("/readyz").status_code == 503, "the worker's heartbeat is missing"
    pulse(USUAL_QUEUE)


def test_answers_carry_a_request_id_and_a_strict_policy(client: Client, settings: Any) -> None:
    answer = client.get("/healthz")
    assert len(answer["X-Request-Id"]) == 32
    policy = answer["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert settings.REST_FRAMEWORK["DEFAULT_RENDERER_CLASSES"] == ["rest_framework.renderers.JSONRenderer"]
