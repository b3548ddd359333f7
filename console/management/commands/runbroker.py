"""`manage.py runbroker`: runs one instance's data plane until it is told to stop (SIGTERM or Ctrl-C)."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from argparse import ArgumentParser
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from broker_core import logs
from broker_core.clock import SYSTEM
from broker_core.config import PolicyDocument
from broker_core.control import last_words
from broker_core.errors import SluiceError
from broker_core.slow_clients.rules.staging import read_stage
from console.project.home import NOT_OURS

T = TypeVar("T")


class Command(BaseCommand):
    """Starts the broker with the policy revision that the database holds for it."""

    help = "Run the data plane of one instance: its journal, its TCP and WebSocket transports, its control socket."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--instance", default=settings.SLUICE_INSTANCE, help="the instance's name (%(default)s)"
        )

    def handle(self, *args: Any, instance: str, **options: Any) -> None:
        os.umask(NOT_OURS)  # journals hold what not everybody on the machine may read
        logs.install()
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (most, most)
        )  # 1,024 is what `select` needs, and nobody here uses that
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        # Twisted takes the loop that is there when its reactor is installed, and daphne installs one when imported.
        from api.broker_websocket import reactor

        reactor.install(loop)
        try:
            loop.run_until_complete(_run(instance))
        except SluiceError as error:
            last_words.note(_control(instance), error, SYSTEM.now_ns())
            raise CommandError(f"{error.sentence} {error.fix}") from None
        finally:
            loop.close()
            logs.settle()


def _control(instance: str) -> Path:
    return Path(settings.SLUICE_RUN_DIRECTORY) / f"{instance}.sock"


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Its result; None when it is told to stop before."""
    task, told = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    await asyncio.wait((task, told), return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if not task.done():
        task.cancel()
        return None
    return task.result()


async def _run(instance: str) -> None:
    from api.broker_websocket.listener import WebSocketListener
    from broker_core.broker import Broker, BrokerPaths
    from broker_core.control.link import read_link
    from broker_core.engine.interpreter import spare_the_loop
    from broker_core.group.member import member_of
    from console.reporters.broker import BrokerReporter
    from console.reporters.events import EventReporter
    from console.services.journal_places import directories_to_open, known_log
    from console.services.policies import orders

    wanted = await asyncio.to_thread(orders, instance)
    own_name = settings.SLUICE_GROUP.member if settings.SLUICE_GROUP is not None else ""
    policy, stage = PolicyDocument.from_dict(wanted["policy"]), read_stage(wanted["staged"], own_name)
    directories = await asyncio.to_thread(directories_to_open, instance)
    paths = BrokerPaths(
        directories.journal,
        directories.archive,
        settings.SLUICE_SPOOL_DIRECTORY,
        _control(instance),
    )
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    group = settings.SLUICE_GROUP
    known = await asyncio.to_thread(known_log, instance, group.member if group is not None else "")
    member = member_of(None if group is None else replace(group, instance=instance))
    if member is not None:
        beginning = await _unless(stopping, member.identity(paths.journal, paths.archive))
        if stopping.is_set():
            return
        known = beginning or known
    link = read_link(
        settings.SLUICE_CONTROL_LISTEN, settings.SLUICE_CONTROL_CERTIFICATE, settings.SLUICE_CONTROL_KEY,
        settings.SLUICE_CONTROL_TOKENS,
    )  # fmt: skip
    broker = Broker(
        policy, paths, WebSocketListener, known, roots=settings.SLUICE_DIRECTORY_ROOTS, member=member, link=link,
        ports_apart=settings.SLUICE_PORTS_APART,
        link_secrets=Path(settings.SLUICE_LINK_SECRETS) if settings.SLUICE_LINK_SECRETS else None,
    )  # fmt: skip
    broker.on_shut_down = stopping.set
    reporter, events = BrokerReporter(broker), EventReporter(broker)

    async def tick(snapshot: dict[str, Any]) -> None:
        events.tick()
        await reporter.report(snapshot)

    await broker.start(tick)
    if stage is not None:
        await broker.apply(policy, stage)
    await events.started()
    spare_the_loop()
    try:
        await stopping.wait()
    finally:
        await broker.stop()
        await reporter.close()
        await events.close()
