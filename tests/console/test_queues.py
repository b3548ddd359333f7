"""Journal tasks have worker slots of their own, so hanging webhooks cannot block them.

Uses real workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings
from django.utils import timezone

from console.choices import RunState
from console.live.workers import pulse_key, worker_key
from console.models import Action, ActionRun
from console.project.celery import app
from console.queue_names import CHORES_QUEUE
from console.services import journals, policies
from console.services.actions import event_runs
from console.services.actors import SYSTEM
from console.supervisor.child_specs import ChildSpec, Installation, chores, worker_child
from console.supervisor.redis_source import RedisSource
from tests.console.services.test_webhooks import drip_body, host
from tests.console.test_worker_killed import LONG_S, database_url
from tests.support.journal_broker import JournalBroker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def broker(redis_url: str, tmp_path: Path) -> Iterator[JournalBroker]:
    """Run a fake broker whose real journal has at least three sealed segments."""
    instance = policies.ensure_instance(settings.SLUICE_INSTANCE)
    socket = Path(settings.SLUICE_RUN_DIRECTORY) / f"{instance.name}.sock"
    with JournalBroker(socket, instance.name, tmp_path / "journal", tmp_path / "archive") as real:
        real.fill(3)
        yield real


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_chores_go_on_while_webhooks_hold_all_other_slots(
    broker: JournalBroker, redis_url: str, tmp_path: Path
) -> None:
    at = Installation(
        "python", tmp_path, tmp_path, "t", "127.0.0.1", 0, RedisSource("given", redis_url, None)
    )
    instance = policies.ensure_instance(settings.SLUICE_INSTANCE)
    with host(drip_body) as port, redis.Redis.from_url(redis_url) as connection:
        declared = f"127.0.0.1:{port}"
        environment = {**os.environ, "DATABASE_URL": database_url(), "SLUICE_WEBHOOK_HOSTS": declared}
        connection.delete(worker_key(""), worker_key(CHORES_QUEUE))
        started = [start(spec, environment) for spec in (worker_child(at), chores(at))]
        try:
            until(lambda: connection.exists(worker_key("")) and connection.exists(worker_key(CHORES_QUEUE)))
            calling = [call(instance, f"call {number}", declared) for number in range(6)]
            until(lambda: ActionRun.objects.filter(state=RunState.RUNNING).count() == 2)
            connection.delete(pulse_key(""), pulse_key(CHORES_QUEUE))
            for queue in ("celery", CHORES_QUEUE):
                app.send_task("console.tasks.pulse", args=[queue], queue=queue)
            run = journals.request(SYSTEM, "compress", "0")
            until(lambda: ActionRun.objects.get(pk=run.pk).state == RunState.SUCCEEDED)
            assert connection.exists(pulse_key(CHORES_QUEUE))
            waits = ActionRun.objects.filter(pk__in=[one.pk for one in calling], state=RunState.WAITING)
            assert waits.exists(), "webhooks filled their queue during the whole test"
            assert not connection.exists(pulse_key("")), (
                "a pulse behind the webhooks waits, and /readyz reports it"
            )
        finally:
            for process in started:
                os.killpg(process.pid, signal.SIGKILL)  # also kills the children of prefork
                process.wait(LONG_S)


def start(spec: ChildSpec, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, *spec.command[1:]]
    return subprocess.Popen(
        command,
        cwd=settings.BASE_DIR,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def call(instance: Any, name: str, declared: str) -> ActionRun:
    action = Action.objects.create(
        instance=instance,
        name=name,
        started_at=timezone.now(),
        steps=[{"do": "webhook", "url": f"http://{declared}/", "data": ""}],
    )
    return event_runs.start_run(SYSTEM, action, {"on": "hand"}, {}, timezone.now())
