"""A real Celery worker is killed with SIGKILL during a step; its run is found, marked as lost, and repeated
safely.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from console.access.rights import EffectiveAccess, GrantedRight
from console.choices import ActorKind, Permission, RunState
from console.models import ActionRun, RunLock
from console.services import execution, policies, runs
from console.services.actions import editor, event_runs
from console.services.actors import Actor

pytestmark = pytest.mark.django_db(transaction=True)
MARIA = Actor(ActorKind.PERSON, "maria", 7, access=EffectiveAccess((GrantedRight(frozenset(Permission)),)))


class Hook(BaseHTTPRequestHandler):
    """HTTP handler that does not answer while `server.hangs` is set."""

    def do_POST(self) -> None:
        server: Any = self.server
        server.keys.append(self.headers["Idempotency-Key"])
        server.arrivals.put(self.headers["Idempotency-Key"])
        if server.hangs.wait(0 if not server.slow else 30):
            return
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def hook() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    server.daemon_threads, server.keys, server.hangs, server.slow = True, [], threading.Event(), True
    server.arrivals = queue.SimpleQueue()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def database_url() -> str:
    """Return the URL of the test database for use in another process."""
    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    return urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()


@pytest.fixture
def worker(redis_url: str, hook: Any) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Yield a function that starts a real Celery worker; kill remaining workers after the test."""
    started: list[subprocess.Popen[bytes]] = []
    declared = f"127.0.0.1:{hook.server_port}"
    environment = {**os.environ, "DATABASE_URL": database_url(), "SLUICE_WEBHOOK_HOSTS": declared}

    def start() -> subprocess.Popen[bytes]:
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
            f"w{len(started)}@test",
        ]
        process = subprocess.Popen(
            words,
            cwd=settings.BASE_DIR,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait(LONG_S)


LONG_S = 600
"""A worker has to start and to import everything first; on a busy machine that takes minutes."""


def arrived(hook: Any, process: subprocess.Popen[bytes]) -> None:
    """Wait until a worker has called the hook; fail if the process ends before."""
    deadline = time.monotonic() + LONG_S
    while True:
        try:
            hook.arrivals.get(timeout=1)
            return
        except queue.Empty:
            assert process.poll() is None, "the worker ended unexpectedly"
            assert time.monotonic() < deadline


def succeeded(key: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the run has succeeded; fail if the process ends before.

    The worker stores the result shortly after its call of the hook.
    """
    deadline = time.monotonic() + LONG_S
    while not ActionRun.objects.filter(pk=key, state=RunState.SUCCEEDED).exists():
        assert process.poll() is None, "the worker ended unexpectedly"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_whose_worker_was_killed_is_found_and_repeated_from_its_step(
    hook: Any, worker: Callable[[], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SLUICE_WEBHOOK_HOSTS", [f"127.0.0.1:{hook.server_port}"])
    instance = policies.ensure_instance(settings.SLUICE_INSTANCE)
    steps = [
        {"do": "truncate", "what": "statistics", "age": "30d"},
        {"do": "webhook", "url": f"http://127.0.0.1:{hook.server_port}/"},
    ]
    action = editor.create(MARIA, instance, {"name": "killed", "steps": steps})
    run = event_runs.start_run(MARIA, action, {"on": "hand"}, {}, timezone.now())
    process = worker()
    arrived(hook, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(LONG_S)
    run.refresh_from_db()
    assert (run.state, [step["do"] for step in run.steps]) == (RunState.RUNNING, ["truncate"])
    assert runs.mark_lost_runs(timezone.now()) == []  # not lost yet: the worker's last report is recent
    assert [lost.pk for lost in runs.mark_lost_runs(timezone.now() + timedelta(minutes=3))] == [run.pk]
    assert RunLock.objects.count() == 0
    run.refresh_from_db()
    assert (run.state, run.error["code"]) == (RunState.LOST, "worker_lost")

    hook.slow = False
    assert execution.execute_run(run.pk) is None  # a redelivered task must not run again
    again = runs.repeat(MARIA, run)
    process = worker()
    arrived(hook, process)
    succeeded(again.pk, process)
    again.refresh_from_db()
    assert [step["do"] for step in again.steps] == ["truncate", "webhook"]
    assert hook.keys == [f"{run.pk}.1"] * 2
