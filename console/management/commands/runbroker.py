"""`manage.py runbroker`: run one instance's data plane until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import resource
import signal
from argparse import ArgumentParser
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from django.conf import settings
from django.core.management.base import CommandError

from broker_core import logs
from broker_core.clock import SYSTEM
from broker_core.control import exit_report
from broker_core.documents.instance import Snapshot
from broker_core.errors import OperatorError, SluiceError
from broker_core.private_files import restrict_tree_permissions
from console.management.safe_command import SafeCommand

T = TypeVar("T")


class Command(SafeCommand):
    """Command that starts a broker with the database's policy, or else with the policy on disk."""

    help = "Run the broker of one instance."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--instance", default=settings.SLUICE_INSTANCE, help="the instance's name (%(default)s)"
        )

    def handle(self, *args: Any, instance: str, **options: Any) -> None:
        logs.install_logging()
        for problem in restrict_tree_permissions(
            (
                settings.SLUICE_JOURNAL_DIRECTORY,
                settings.SLUICE_ARCHIVE_DIRECTORY,
                settings.SLUICE_SPOOL_DIRECTORY,
            )
        ):
            self.stderr.write(problem)
        hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        # The default of 1,024 serves only programs that use `select`, which Sluice doesn't.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        # Twisted uses the event loop that exists when its reactor is installed. Importing daphne installs it.
        from api.broker_websocket import reactor

        reactor.install(loop)
        try:
            loop.run_until_complete(_run(instance))
        except SluiceError as error:
            exit_report.write_exit_report(_control(instance), error, SYSTEM.now_ns())
            raise CommandError(f"{error.sentence} {error.fix}") from None
        finally:
            loop.close()
            logs.flush_logs()


def _control(instance: str) -> Path:
    return Path(settings.SLUICE_RUN_DIRECTORY) / f"{instance}.sock"


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the work's result, or None if the broker was asked to stop before."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        task.cancel()
        return None
    return task.result()


async def _run(instance: str) -> None:
    """Start the broker with its reporters, and stop all in order when a signal arrives.

    Imports are here because they need the reactor and Django's apps.
    """
    from api.broker_websocket.listener import WebSocketListener
    from broker_core.broker import Broker, BrokerPaths
    from broker_core.control.tls_listener import read_link_settings
    from broker_core.engine.loop_monitor import LoopMonitor
    from broker_core.engine.maintenance import tune_interpreter
    from broker_core.group.member import create_member
    from console.database_limits import limit_waits
    from console.reporters.database_thread import DatabaseThread
    from console.reporters.event_reporter import EventReporter
    from console.reporters.snapshot_reporter import SnapshotReporter
    from console.reporters.start import read_start_orders
    from console.services.journal_directories import policy_file

    limit_waits()
    # Signals come first: a broker that waits for the database must stop on SIGTERM too.
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    group, file, thread = settings.SLUICE_GROUP, policy_file(instance), DatabaseThread("database")

    def note_waiting(problem: OperatorError) -> None:
        exit_report.write_exit_report(_control(instance), problem, SYSTEM.now_ns())

    orders = await _unless(
        stopping,
        read_start_orders(instance, group.member if group is not None else "", file, thread, note_waiting),
    )
    if orders is None:
        return
    # The policy names the directories, so the orders are needed before the journal is opened.
    paths = BrokerPaths(
        orders.directories.journal,
        orders.directories.archive,
        settings.SLUICE_SPOOL_DIRECTORY,
        _control(instance),
    )
    known = orders.known
    member = create_member(None if group is None else replace(group, instance=instance))
    if member is not None:
        identity = member.find_log_identity(paths.journal, paths.archive, orders.group)
        beginning = await _unless(stopping, identity)
        if stopping.is_set():
            return
        known = beginning or known
    link = read_link_settings(
        settings.SLUICE_CONTROL_LISTEN,
        settings.SLUICE_CONTROL_CERTIFICATE,
        settings.SLUICE_CONTROL_KEY,
        settings.SLUICE_CONTROL_TOKENS,
    )
    broker = Broker(
        orders.policy,
        paths,
        WebSocketListener,
        known,
        roots=settings.SLUICE_DIRECTORY_ROOTS,
        reserved=(*settings.SLUICE_RESERVED_DIRECTORIES, *settings.SLUICE_PIPELINE_DIRECTORIES),
        member=member,
        link=link,
        port_offset=settings.SLUICE_PORTS_APART,
        link_secrets=Path(settings.SLUICE_LINK_SECRETS) if settings.SLUICE_LINK_SECRETS else None,
        policy_file=file,
        set_back=orders.set_back,
    )
    broker.on_shut_down = stopping.set
    reporter = SnapshotReporter(broker, thread, orders.database)
    events = EventReporter(broker)
    reporter.events = events

    async def tick(snapshot: Snapshot) -> None:
        events.tick()
        await reporter.report(snapshot)

    await broker.start(tick, orders.stage)
    monitor = LoopMonitor(broker.stalls, paths.control, broker.member)
    monitor.start()
    events.begin()
    tune_interpreter()
    try:
        await stopping.wait()
    finally:
        # The broker stops first, so that the reporters store its last decisions and events.
        monitor.stop()
        await broker.stop()
        await reporter.close()
        await events.close()
