"""Run the real console on a port of its own, with seeded history, for browser tests and screenshots.

    python -m tests.support.console_server PORT [settled|real|machines]

Without a word, the console stands before a fake broker. Other words:

- `settled`: the fake broker runs the newest policy revision.
- `real`: a real broker replaces the fake one, and there is no history.
- `machines`: a group of three brokers and a standalone broker, all fake. Lines on standard input
  name events that happen to them (tests/support/machines.py).

SIGUSR1 resets the fake broker's clients to those of the start. SIGUSR2 makes them 500.

The channel layer is in memory because the web process and the pusher are one process here. Redis is
real, and everything else runs as in production.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

os.environ["DJANGO_SETTINGS_MODULE"] = "console.project.settings_test"
NAME, PASSWORD = "maria", "a-long-test-password"
WITH_APP = "tom"
"""User who must enter a code after the password."""
INSTANCE = "sluice-1"


def main() -> None:
    """Serve until stopped."""
    port, scene = int(sys.argv[1]), sys.argv[2:]
    from django.conf import settings

    settings.ROOT_URLCONF = "tests.support.console_urls"
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    import django

    django.setup()
    from django.core.management import call_command

    from api.web_server import WebServer
    from console.views import styleguide
    from tests.support.redis_process import redis_server

    call_command("migrate", verbosity=0)
    make_people()
    # The style guide exists only under DEBUG, which would change the 404 and 500 pages.
    styleguide.settings = SimpleNamespace(DEBUG=True)  # type: ignore[assignment]
    run = Path(settings.SLUICE_RUN_DIRECTORY)
    behind = real_broker if "real" in scene else several_machines if "machines" in scene else fake_broker
    with redis_server(settings.REDIS_URL, run), behind(run) as application:
        WebServer(application, "127.0.0.1", port).run()
    if behind is not real_broker:
        sys.stderr.flush()
        os._exit(0)  # a thread may block on the stopped Redis, and Python would wait for it


def make_people() -> None:
    """Create an administrator, a viewer, and accounts that tests change."""
    from django.contrib.auth import get_user_model
    from django_otp.plugins.otp_totp.models import TOTPDevice

    from console.choices import Role
    from console.models import Grant

    def person(name: str, role: Role) -> Any:
        user = get_user_model().objects.create_user(name, password=PASSWORD)
        Grant.objects.create(user=user, role=role)
        return user

    person(NAME, Role.ADMINISTRATOR)
    person("viewer", Role.VIEWER)
    person("paula", Role.OPERATOR)  # changes its password, so other tests must not log in with it
    TOTPDevice.objects.create(user=person(WITH_APP, Role.VIEWER), name="authenticator app", confirmed=True)


@contextlib.contextmanager
def fake_broker(run: Path) -> Iterator[Any]:
    """Run the console with a fake broker and seeded history."""
    from console.services import policies
    from tests.support.fake_broker import FakeBroker
    from tests.support.seed import seed_history
    from tests.support.seed_pipeline import seed_runs_of_jobs

    instance = seed_history(INSTANCE)
    seed_runs_of_jobs()
    with FakeBroker(run / f"{instance.name}.sock") as broker:
        broker.cut_off = ["lake-loader"]
        if "settled" in sys.argv:
            broker.revision = policies.newest_revision(instance).number
        signal.signal(signal.SIGUSR1, lambda *_: broker.begin_morning())
        signal.signal(signal.SIGUSR2, lambda *_: broker.begin_rush_hour())
        yield Pushing(broker)


@contextlib.contextmanager
def real_broker(run: Path) -> Iterator[Any]:
    """Run the console before a real broker with TCP and STOMP on free ports.

    The broker disconnects clients with more than ten waiting messages of `t`.
    """
    from broker_core.config import PolicyDocument
    from console.services import policies
    from console.services.actors import SYSTEM
    from tests.support.broker_thread import broker_thread
    from tests.support.rules import policy_with, rule
    from tests.support.stomp_client import stomp_policy

    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    wanted = stomp_policy(policy_with(rule("disconnect"))).to_dict()
    wanted["instance"]["name"] = policies.ensure_instance(INSTANCE).name
    revision = policies.publish(SYSTEM, wanted, instance_name=INSTANCE).revision
    with tempfile.TemporaryDirectory(prefix="sluice-") as home:
        with broker_thread(Path(home), PolicyDocument.from_dict(revision.document), run / f"{INSTANCE}.sock"):
            from console.project.asgi import application

            yield application


@contextlib.contextmanager
def several_machines(run: Path) -> Iterator[Any]:
    """Run the console with a group, a standalone broker and history; each input line is a scene."""
    from django.conf import settings

    from console.services import policies
    from tests.support.machines import OTHER, Machines
    from tests.support.seed import seed_history
    from tests.support.seed_pipeline import seed_runs_of_jobs

    seed_history(INSTANCE)
    seed_runs_of_jobs()
    machines = Machines(run)
    settings.SLUICE_BROKERS = tuple(machines.addresses)
    policies.ensure_instance(OTHER)
    machines.take_up(policies.newest_revision(policies.ensure_instance(INSTANCE)).number)

    def listen() -> None:
        for line in sys.stdin:
            machines.play(line)

    with machines:
        threading.Thread(target=listen, daemon=True).start()
        signal.signal(signal.SIGUSR1, lambda *_: machines.begin_morning())
        yield Pushing(machines)


class Pushing:
    """ASGI application of the console. Its first request starts the task that pushes a snapshot every
    second.
    """

    def __init__(self, broker: Any) -> None:
        """Wrap the console's application; `broker` is a fake broker or `Machines`."""
        from console.project.asgi import application

        self.inner, self.broker = application, broker
        self.task: asyncio.Task[None] | None = None

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Serve, as daphne asks."""
        if self.task is None:
            self.task = asyncio.create_task(self._push())
        await self.inner(scope, receive, send)

    async def _push(self) -> None:
        from channels.layers import get_channel_layer

        from console.project.celery import refresh_worker_key
        from console.services.broker_reports import record_report

        layer = get_channel_layer()
        while True:
            self.broker.move()
            for broker in getattr(self.broker, "there", [self.broker]):
                snapshot = broker.snapshot()
                told = {"type": "live.snapshot", "snapshot": msgspec.json.encode(snapshot)}
                await layer.group_send("live", told)
                # a page may lock SQLite; the next second reports again
                with contextlib.suppress(Exception):
                    await asyncio.to_thread(record_report, snapshot)
            with contextlib.suppress(Exception):
                await asyncio.to_thread(refresh_worker_key)
            await asyncio.sleep(1)


if __name__ == "__main__":
    main()
