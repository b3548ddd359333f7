from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from django.conf import settings
from django.utils import timezone

from console.choices import ActorKind, RunState
from console.models import Action, ActionRun, ClientSample
from console.queries.readiness import WORKER_KEY
from console.services import journals, policies
from console.services.actors import Actor
from console.tasks import run_minute_jobs
from tests.support.celery_worker import running_worker
from tests.support.journal_broker import JournalBroker

pytestmark = pytest.mark.django_db(transaction=True)
MARIA = Actor(ActorKind.PERSON, "maria")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[JournalBroker]:
    instance = policies.ensure_instance(settings.SLUICE_INSTANCE)
    socket = Path(settings.SLUICE_RUN_DIRECTORY) / f"{instance.name}.sock"
    with JournalBroker(socket, instance.name, tmp_path / "journal", tmp_path / "archive") as real:
        real.fill(1)
        yield real


def test_run_goes_through_redis_to_a_worker_and_comes_back_done(
    broker: JournalBroker, redis_url: str
) -> None:
    with running_worker(20):
        run = journals.request(MARIA, "compress", "0")
        deadline = time.monotonic() + 30
        while run.state in (RunState.WAITING, RunState.RUNNING):
            assert time.monotonic() < deadline, run.log
            time.sleep(0.05)
            run.refresh_from_db()
    assert run.state == RunState.SUCCEEDED, run.log
    assert broker.journal.segments()[0].compressed


def test_tick_starts_what_is_due_and_forgets_what_is_old(broker: JournalBroker, redis_url: str) -> None:
    instance = policies.ensure_instance(settings.SLUICE_INSTANCE)
    now = timezone.now()
    Action.objects.update(started_at=now - timedelta(days=30))
    ClientSample.objects.create(instance=instance, client="one", at=now - timedelta(days=9), state="live")
    run_minute_jobs()
    run_minute_jobs()
    assert ActionRun.objects.get().actor_kind == ActorKind.SCHEDULE
    assert ClientSample.objects.count() == 0


def test_worker_process_says_that_it_lives(redis_url: str) -> None:
    words = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "console.project",
        "worker",
        "--pool",
        "solo",
        "-n",
        "test@sluice",
    ]
    with redis.Redis.from_url(redis_url) as connection:
        connection.delete(WORKER_KEY)
        process = subprocess.Popen(
            words, cwd=settings.BASE_DIR, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + 60
            while not connection.exists(WORKER_KEY):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
        finally:
            process.terminate()
            process.wait(20)
