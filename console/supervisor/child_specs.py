"""The children as data: command, needs, how to ask if ready, how to stop. In the order they start. Pure."""

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
"""Asked with the wall-clock time the child was started at; answers whether it is ready."""


@dataclass(frozen=True, slots=True)
class StopStep:
    """One rung of the ladder that brings a child down: a signal, and how long it may then take, in seconds."""

    signal: signal.Signals
    wait_s: float


GENTLE = (StopStep(signal.SIGTERM, 10.0), StopStep(signal.SIGKILL, 5.0))


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One process.

    needs     names of children that must be ready first
    ready     asked every quarter second until it says yes; None: ready as soon as it runs
    ready_s   after this long without a yes the operator is told, with the child's last lines
    once      when it ends with code 0 it has done its work and is not started again
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
    """What the children's command lines are made from."""

    python: str
    home: Path
    run_directory: Path
    instance: str
    web_host: str
    web_port: int
    redis: RedisSource
    web_tls: TlsSettings | None = None
    queue: str = ""
    """Where the console is on another machine: the queue of this machine's worker."""

    @property
    def web_address(self) -> str:
        """What a browser is given."""
        return f"http{'s' if self.web_tls else ''}://{self.web_host}:{self.web_port}/"

    @property
    def control_socket(self) -> Path:
        """Where the broker answers `status`."""
        return self.run_directory / f"{self.instance}.sock"


def all_children(at: Installation) -> list[ChildSpec]:
    """All of Sluice, or with the console elsewhere what each machine needs, in the order it starts. It stops in the reverse
    order: the broker last but Redis."""
    specs = (
        [broker_child(at), worker_child(at)]
        if at.queue
        else [broker_child(at), web_child(at), worker_child(at), chores(at), beat_child(at)]
    )
    return specs if at.redis.executable is None else [redis_child(at, at.redis.executable), *specs]


def _needs_redis(at: Installation) -> tuple[str, ...]:
    return ("redis",) if at.redis.executable is not None else ()


def redis_child(at: Installation, executable: Path) -> ChildSpec:
    """Redis on a Unix socket alone. What waits in Celery's queues is saved, also when it is stopped."""
    socket = at.redis.url.removeprefix("unix://")
    options = {
        "--port": "0",
        "--unixsocket": socket,
        "--unixsocketperm": "700",
        "--daemonize": "no",
        "--dir": str(at.home / "run"),
        # Named by origin: an older Redis can't read what a newer one wrote, and would refuse to start.
        "--dbfilename": f"redis-{at.redis.kind}.rdb",
        "--save": "60 1",
        "--stop-writes-on-bgsave-error": "no",
    }
    command = (str(executable), *(word for pair in options.items() for word in pair))
    return ChildSpec("redis", command, ready=lambda _: readiness.is_redis_ready(Path(socket)))


def broker_child(at: Installation) -> ChildSpec:
    """The data plane. It gets the longest time to stop: it drains, syncs and closes its journal."""
    return ChildSpec(
        "broker",
        (at.python, "manage.py", "runbroker"),
        ready=lambda _: readiness.is_broker_ready(at.control_socket),
        needs=_needs_redis(at),
        ready_s=60.0,  # recovery of a large journal takes its time
        stop=(StopStep(signal.SIGTERM, 30.0), StopStep(signal.SIGKILL, 5.0)),
        once=True,  # an action may shut it down, and then it stays down; whatever kills it starts it again
    )


def web_child(at: Installation) -> ChildSpec:
    """Console, REST and live feed, by daphne."""
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
    """The Celery worker of actions, jobs, alerts and the audit; with the console elsewhere, of the journal."""
    if at.queue:  # names differ among the workers of one Redis
        return _celery_worker(at, "worker", f"worker@{at.queue}", at.queue, slots=1)
    return _celery_worker(at, "worker", f"worker@{at.instance}", USUAL_QUEUE, slots=2)


def chores(at: Installation) -> ChildSpec:
    """The Celery worker of journals, schedules and the watch over alerts: it never waits for other hosts."""
    return _celery_worker(at, "chores", f"chores@{at.instance}", CHORES_QUEUE, slots=2)


def _celery_worker(at: Installation, name: str, node: str, queue: str, slots: int) -> ChildSpec:
    """SIGTERM lets a running task end, SIGQUIT gives it up."""
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
    """The clock of the scheduled actions."""
    schedule = at.home / "run" / "celerybeat-schedule"
    options = ("--schedule", str(schedule), "--pidfile", "", "--loglevel", "INFO")
    return ChildSpec(
        "beat",
        (at.python, "-m", "celery", "-A", "console.project", "beat", *options),
        ready=lambda started_at: readiness.is_beat_ready(schedule, started_at),
        needs=_needs_redis(at),
    )
