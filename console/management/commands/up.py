"""`manage.py up`: all of Sluice under one supervisor, alone or as a group of brokers. `make up` runs it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from broker_core.errors import SluiceError
from console.management import group_startup, startup
from console.management.safe_command import SafeCommand
from console.supervisor.group_specs import MAX_MEMBERS


class Command(SafeCommand):
    help = "Start and supervise Redis, broker, web, workers and beat. Ctrl-C stops them."
    requires_system_checks: list[str] = []  # startup.prepare runs them, once Redis and database are there

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--show-output", action="store_true", help="print the processes' output as well")
        how = parser.add_mutually_exclusive_group()
        how.add_argument(
            "--group",
            type=int,
            metavar="N",
            help=f"start N brokers (2 to {MAX_MEMBERS}) on one log, with three NATS servers (docs/group.md)",
        )
        how.add_argument(
            "--prepare-broker",
            action="store_true",
            help=(
                "start nothing; prepare database, policy and directories for "
                "runbroker, and check that ports are free"
            ),
        )

    def handle(self, *args: Any, show_output: bool = False, **options: Any) -> None:
        code = 0
        try:
            if options["prepare_broker"]:
                startup.prepare(console=False)
            elif options["group"] is not None:
                code = group_startup.start_group(options["group"], show_output=show_output)
            else:
                code = startup.start_installation(show_output=show_output)
        except SluiceError as error:
            raise CommandError(f"{error.sentence} {error.fix}".rstrip()) from error
        except KeyboardInterrupt:  # before the supervisor handles signals: no process runs yet
            raise SystemExit(130) from None
        raise SystemExit(code)
