"""Specifications of the child processes: command, dependencies, readiness check, signals to stop. Pure."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from broker_core.config import TlsSettings
from console.queue_names import CHORES_QUEUE, USUAL_QUEUE
from console.supervisor import readiness
from console.supervisor.redis_source import RedisSource

Ready = Callable[[float], Awaitable[bool]]
"""Readiness check: gets the wall-clock time of the child's start, and returns whether the child is ready."""


@dataclass(frozen=True, slots=True)
class StopStep:
    """Step of stopping a child: a signal, and the seconds that the child then has to exit."""

    signal: signal.Signals
    wait_s: float


GENTLE = (StopStep(signal.SIGTERM, 10.0), StopStep(signal.SIGKILL, 5.0))
"""Default steps to stop a child."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """Specification of one child process.

    needs     names of children that must be ready first
    ready     readiness check, called every quarter of a second; None: ready as soon as it runs
    ready_s   seconds without readiness after which the operator sees the child's last lines
    once      exit code 0 means that its work is done: no restart
    """

    name: str
    command: tuple[str, ...]
    ready: Ready | None = None
    needs: tuple[str, ...] = ()
    ready_s: float = 30.0
    stop: tuple[StopStep, ...] = GENTLE
    once: bool = False
    environment: tuple[tuple[str, str], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Installation:
    """Facts about the installation from which the children's command lines are made."""

    python: str
    home: Path
    run_directory: Path
    instance: str
    web_host: str
    web_port: int
    redis: RedisSource
    web_tls: TlsSettings | None = None
    queue: str = ""
    """Queue of this machine's worker if the console runs on another machine; otherwise ""."""

    @property
    def web_address(self) -> str:
        """Address of the console for browsers."""
        return f"http{'s' if self.web_tls else ''}://{self.web_host}:{self.web_port}/"

    @property
    def control_socket(self) -> Path:
        """Unix socket at which the broker answers requests such as `status`."""
        return self.run_directory / f"{self.instance}.sock"


def all_children(at: Installation) -> list[ChildSpec]:
    """Return all children in the order of their start.

    If the console runs elsewhere, only those for the journal.

    They stop in reverse order: Redis last, before it the broker.
    """
    specs = (
        [broker_child(at), worker_child(at)]
        if at.queue
        else [broker_child(at), web_child(at), worker_child(at), chores(at), beat_child(at)]
    )
    return specs if at.redis.executable is None else [redis_child(at, at.redis.executable), *specs]


def _needs_redis(at: Installation) -> tuple[str, ...]:
    return ("redis",) if at.redis.executable is not None else ()


def redis_child(at: Installation, executable: Path) -> ChildSpec:
    """Return Redis on a Unix socket only. It saves the tasks in Celery's queues, also when it is stopped."""
    socket = at.redis.url.removeprefix("unix://")
    options = {
        "--port": "0",
        "--unixsocket": socket,
        "--unixsocketperm": "700",
        "--daemonize": "no",
        "--dir": str(at.home / "run"),
        # Named by origin: an older Redis can't read the file of a newer one, and would refuse to start.
        "--dbfilename": f"redis-{at.redis.kind}.rdb",
        "--save": "60 1",
        "--stop-writes-on-bgsave-error": "no",
    }
    command = (str(executable), *(word for pair in options.items() for word in pair))
    return ChildSpec("redis", command, ready=lambda _: readiness.is_redis_ready(Path(socket)))


def broker_child(at: Installation) -> ChildSpec:
    """Return the broker. It has the longest time to stop, because it drains, syncs and closes its journal."""
    return ChildSpec(
        "broker",
        (at.python, "manage.py", "runbroker"),
        ready=lambda _: readiness.is_broker_ready(at.control_socket),
        needs=_needs_redis(at),
        ready_s=60.0,  # recovery of a large journal is slow
        stop=(StopStep(signal.SIGTERM, 30.0), StopStep(signal.SIGKILL, 5.0)),
        once=True,  # an action may shut it down permanently; after any other end it is restarted
    )


def web_child(at: Installation) -> ChildSpec:
    """Return the web process: console, REST and live feed, served by daphne."""
    host, port, tls = at.web_host, str(at.web_port), at.web_tls
    application = "console.project.asgi:application"
    files = () if tls is None else (tls.certificate, tls.key)
    server = ("api.web_server", host, port, application, *files)
    return ChildSpec(
        "web",
        (at.python, "-m", *server),
        ready=lambda _: readiness.is_http_ready(host, at.web_port, "/healthz", tls=tls is not None),
        needs=_needs_redis(at),
    )


def worker_child(at: Installation) -> ChildSpec:
    """Return the Celery worker for actions, jobs, alerts and the audit.

    If the console runs elsewhere, it is the worker for this machine's journal.
    """
    if at.queue:  # names of workers on one Redis must differ
        return _celery_worker(at, "worker", f"worker@{at.queue}", at.queue, slots=1)
    return _celery_worker(at, "worker", f"worker@{at.instance}", USUAL_QUEUE, slots=2)


def chores(at: Installation) -> ChildSpec:
    """Return the Celery worker for journals, schedules and checks of alerts.

    Its tasks never wait for other hosts.
    """
    return _celery_worker(at, "chores", f"chores@{at.instance}", CHORES_QUEUE, slots=2)


def _celery_worker(at: Installation, name: str, node: str, queue: str, slots: int) -> ChildSpec:
    """Return a Celery worker. SIGTERM lets its running tasks finish, SIGQUIT aborts them."""
    options = ("--hostname", node, "--concurrency", str(slots), "--loglevel", "INFO", "-Q", queue)
    return ChildSpec(
        name,
        (at.python, "-m", "celery", "-A", "console.project", "worker", *options),
        ready=lambda _: readiness.is_worker_ready(at.redis.url, node),
        needs=_needs_redis(at),
        ready_s=60.0,
        stop=(StopStep(signal.SIGTERM, 20.0), StopStep(signal.SIGQUIT, 5.0), StopStep(signal.SIGKILL, 5.0)),
    )


def beat_child(at: Installation) -> ChildSpec:
    """Return Celery's beat, which starts periodic tasks."""
    schedule = at.home / "run" / "celerybeat-schedule"
    options = ("--schedule", str(schedule), "--pidfile", "", "--loglevel", "INFO")
    return ChildSpec(
        "beat",
        (at.python, "-m", "celery", "-A", "console.project", "beat", *options),
        ready=lambda started_at: readiness.is_beat_ready(schedule, started_at),
        needs=_needs_redis(at),
    )
