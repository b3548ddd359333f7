"""`manage.py up`: all of Sluice under one supervisor. Started by `make up`."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from broker_core.errors import SluiceError
from console.management import startup


class Command(BaseCommand):
    help = "Start Redis, broker, web, worker and beat, keep them running, and stop them cleanly on Ctrl-C."
    requires_system_checks: list[str] = []  # run by startup.prepare, once what they need is there

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--show-output", action="store_true", help="print what the processes print, too")

    def handle(self, *args: Any, show_output: bool = False, **options: Any) -> None:
        try:
            code = startup.up(show_output=show_output)
        except SluiceError as error:
            raise CommandError(f"{error.sentence} {error.fix}".rstrip()) from error
        except KeyboardInterrupt:  # before the supervisor took the signals over: nothing runs yet
            raise SystemExit(130) from None
        raise SystemExit(code)
