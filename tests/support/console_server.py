"""The real console on a port of its own, before a fake broker and with seeded history: for browser tests and screenshots.

    python -m tests.support.console_server PORT [settled]        # settled: the broker runs the newest revision

The channel layer is in memory, since web process and pusher are one process here; Redis is a real one, and everything else
is as in production. On SIGUSR1 the broker's clients are again as they were at the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

os.environ["DJANGO_SETTINGS_MODULE"] = "console.project.settings_test"
NAME, PASSWORD = "maria", "a-long-test-password"


def main() -> None:
    """Serve until stopped."""
    port = int(sys.argv[1])
    from django.conf import settings

    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    import django

    django.setup()
    from daphne.endpoints import build_endpoint_description_strings
    from daphne.server import Server
    from django.contrib.auth import get_user_model
    from django.core.management import call_command

    from console.choices import Role
    from console.models import Grant
    from console.services import policies
    from tests.support.fake_broker import FakeBroker
    from tests.support.redis_process import redis_server
    from tests.support.seed import seed_history

    def person(name: str, role: Role) -> None:
        Grant.objects.create(user=get_user_model().objects.create_user(name, password=PASSWORD), role=role)

    call_command("migrate", verbosity=0)
    person(NAME, Role.ADMINISTRATOR)
    person("viewer", Role.VIEWER)
    person("paula", Role.OPERATOR)  # changes her password, so nobody else logs in as her
    instance = seed_history()
    run = Path(settings.SLUICE_RUN_DIRECTORY)
    with redis_server(settings.REDIS_URL, run), FakeBroker(run / f"{instance.name}.sock") as broker:
        if "settled" in sys.argv:
            broker.revision = policies.newest_of(instance).number
        signal.signal(signal.SIGUSR1, lambda *_: broker.begin_morning())
        application = Pushing(broker)
        endpoints = build_endpoint_description_strings(host="127.0.0.1", port=port)
        Server(application, endpoints=endpoints, signal_handlers=True, websocket_timeout=-1).run()
    sys.stderr.flush()
    os._exit(0)  # a thread may wait for the Redis that has just ended, and Python would wait for the thread


class Pushing:
    """The console's application; its first request also starts what the broker process does: a snapshot each second."""

    def __init__(self, broker: Any) -> None:
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

        from console.project.celery import say_alive
        from console.services.reports import record_report

        layer = get_channel_layer()
        while True:
            self.broker.move()
            snapshot = self.broker.snapshot()
            told = {"type": "live.snapshot", "snapshot": msgspec.json.encode(snapshot)}
            await layer.group_send("live", told)
            with contextlib.suppress(
                Exception
            ):  # SQLite may be busy with a page; the next second reports again
                await asyncio.to_thread(record_report, snapshot)
                await asyncio.to_thread(say_alive)
            await asyncio.sleep(1)


if __name__ == "__main__":
    main()
