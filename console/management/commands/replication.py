"""`manage.py replication status`: the group that the broker on this machine is a member of, as it sees it."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

import msgspec
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.table import Table

from broker_core.documents.group import GroupStatus
from broker_core.documents.requests import GetGroup
from broker_core.errors import SluiceError
from console.broker_link import link_to


class Command(BaseCommand):
    """Ends with 1 when this member doesn't take part, a member is away or differs, or an engine isn't up to date."""

    help = "Look at the group of brokers that share this instance's log: members, how far each is, hashes, engines."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True, metavar="status")
        status = commands.add_parser("status", help="how the group is; exit code 1 when not all is well")
        status.add_argument("--json", action="store_true", help="JSON instead of text")
        status.add_argument(
            "--instance", default=settings.SLUICE_INSTANCE, help="the instance's name (%(default)s)"
        )

    def handle(self, *args: Any, instance: str, json: bool, **options: Any) -> None:
        try:
            status = link_to(instance).call(GetGroup())
        except SluiceError as error:
            raise CommandError(f"{error.sentence} {error.fix}".rstrip()) from None
        if json:
            self.stdout.write(msgspec.json.encode(status).decode())
        else:
            _show(status, Console(file=self.stdout._out, width=120))
        if not is_well(status):
            sys.exit(1)


def is_well(status: GroupStatus) -> bool:
    """Whether everybody takes part, agrees, and every engine is up to date."""
    members = all(one.there and one.alike is not False for one in status.members)
    return status.state == "taking part" and members and status.engines_current == status.engines


def _show(status: GroupStatus, console: Console) -> None:
    console.print(f"{status.instance}: {status.member} is {status.state}", highlight=False, soft_wrap=True)
    if status.why:
        console.print(f"  {status.why} {status.fix}".rstrip(), highlight=False, soft_wrap=True)
    if status.log:
        leader = f", {status.leader} leads" if status.leader else ""
        console.print(
            f"  log {status.log}, generation {status.generation}, {status.last} entries;"
            f" {status.engines_current} of {status.engines} engines up to date{leader}",
            highlight=False,
            soft_wrap=True,
        )
    if abs(status.clock_ahead_ms) > 2_000:
        console.print(
            f"  this machine's clock is {status.clock_ahead_ms / 1_000:+.1f} s off the engine's",
            highlight=False,
            soft_wrap=True,
        )
    table = Table(box=None, pad_edge=False)
    for title, justify in (("member", "left"), ("", "left"), ("applied", "right"), ("behind", "right"), ("record", "right"), ("hash there", "left")):  # fmt: skip
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for one in status.members:
        how = "here" if one.name == status.member else "away" if not one.there else _LIKE[one.alike]
        table.add_row(
            one.name, how, str(one.applied), str(one.behind), str(one.sequence), one.chain or "unknown"
        )
    console.print(table)


_LIKE = {None: "not compared yet", True: "the same", False: "DIFFERS"}
