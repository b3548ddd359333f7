"""`manage.py replication`: the group that the broker on this machine is a member of, and what is done to a member that can't take part.

`status` asks the running broker. The others are for a broker that is stopped: each prints its plan, and does it with `--yes` alone.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError
from rich.console import Console
from rich.table import Table

from broker_core.documents.group import GroupStatus, MemberEntry
from broker_core.documents.links import LinkEntry, Links
from broker_core.errors import OperatorError, SluiceError
from broker_core.group import reseed
from broker_core.group.member import engine_of
from broker_core.group.ports import Attached
from broker_core.group.settings import GroupSettings
from console.broker_link import link_to
from console.queries.group import group_now, is_well
from console.services.group import change_link, change_member, is_link
from console.services.journal_places import directories_now, record_log


class Command(BaseCommand):
    """`status` ends with 1 when this member doesn't take part, a member is away or differs, or an engine isn't up to date."""

    help = "The group of brokers that share this instance's log: its state, and its members' journals."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        commands = parser.add_subparsers(
            dest="command", required=True, metavar="status|downgrade|upgrade|init|join|reseed"
        )
        status = commands.add_parser(
            "status", help="show the state of the group; exit code 1 unless all is well"
        )
        for name, says in (
            (
                "downgrade",
                "let the running broker wait no more for a sync member or destination, until it is upgraded",
            ),
            ("upgrade", "let the running broker wait for a sync member or destination again"),
        ):
            one = commands.add_parser(name, help=says)
            one.add_argument(
                "member",
                help="a member's name as in the policy's sync_members, or link.NAME for a destination whose durability is sync",
            )
            one.add_argument("--json", action="store_true", help="JSON instead of text")
            one.add_argument(
                "--instance", default=settings.SLUICE_INSTANCE, help="the instance's name (%(default)s)"
            )
        init = commands.add_parser(
            "init",
            help="make a new log that continues the journal on this machine; the broker must be stopped",
        )
        join = commands.add_parser("join", help="give a new member its journal; the broker must be stopped")
        renew = commands.add_parser(
            "reseed",
            help="move the journal on this machine aside, and take another member's; the broker must be stopped",
        )
        for one in (status, init, join, renew):
            one.add_argument("--json", action="store_true", help="JSON instead of text")
            one.add_argument(
                "--instance", default=settings.SLUICE_INSTANCE, help="the instance's name (%(default)s)"
            )
        for one in (init, join, renew):
            one.add_argument(
                "--yes", action="store_true", help="do it; without this, only the plan is printed"
            )
        init.add_argument(
            "--replace",
            action="store_true",
            help="set aside the engine's log, if it is a different one or has lost its end",
        )
        for one in (join, renew):
            one.add_argument(
                "--from",
                type=Path,
                dest="source",
                metavar="DIRECTORY",
                help="the journal directory of a healthy member, whose broker may be running, or a copy of it; default: the engine's log"
                " alone, while that has its first entry",
            )
            one.add_argument(
                "--from-archive", type=Path, metavar="DIRECTORY", help="that member's archive directory"
            )

    def handle(self, *args: Any, command: str, **options: Any) -> None:
        try:
            if command == "status":
                self._status(**options)
            elif command in ("downgrade", "upgrade"):
                self._change(command, **options)
            else:
                self._act(command, **options)
        except SluiceError as error:
            raise CommandError(f"{error.sentence} {error.fix}".rstrip()) from None

    def _status(self, instance: str, json: bool, **options: Any) -> None:
        status = group_now(instance)
        if json:
            self.stdout.write(msgspec.json.encode(status).decode())
        else:
            _show(status, Console(file=self.stdout._out, width=140))
        if not is_well(status):
            sys.exit(1)

    def _change(self, change: str, instance: str, member: str, json: bool, **options: Any) -> None:
        brokers, by = link_to(instance), f"{getuser()} at a terminal"
        console = Console(file=self.stdout._out, width=140)
        if is_link(member):
            links = change_link(brokers, change, member, by)
            self._line(links) if json else _show_links(links, console)
        else:
            status = change_member(brokers, change, member, by)
            self._line(status) if json else _show(status, console)

    def _act(self, act: str, instance: str, json: bool, yes: bool, **options: Any) -> None:
        group = _group_of(instance)
        directories = directories_now(instance)
        own = reseed.Places(directories.journal, directories.archive)
        given = options.get("source")
        source = None if given is None else reseed.Places(given, options["from_archive"])
        now = datetime.now(UTC)
        found = asyncio.run(reseed.find(engine_of(group)))
        if act == "init":
            plan = reseed.plan_init(own, instance, group.member, found, replace=options["replace"])
        else:
            stamp = now.strftime("%Y%m%dT%H%M%SZ")
            plan = reseed.plan_reseed(
                "join" if act == "join" else "reseed", own, source, instance, group.member, found, stamp
            )
        say = (lambda _: None) if json else self._said
        if not json:
            self._plan(plan)
        if not yes:
            self._line(plan if json else "Nothing was done; --yes does it.")
            return
        receipt = _done(act, plan, own, source, group, found, now.isoformat(timespec="seconds"), say)
        _record(instance, group.member, receipt)
        if json:
            self._line(receipt)
            return
        hashed = f", hash {receipt.chain}" if receipt.chain else ""  # none of a journal that begins empty
        self._line(f"Done: log {receipt.plan.log}, {receipt.records} records{hashed}.")
        self._line("Start the broker; then `manage.py replication status`.")

    def _plan(self, plan: reseed.Plan) -> None:
        self._line(f"{plan.act} {plan.member} of {plan.instance}:")
        for number, step in enumerate(plan.steps, 1):
            self._line(f"  {number}. {step}")

    def _said(self, sentence: str) -> None:
        self._line(f"  {sentence}")

    def _line(self, what: str | msgspec.Struct) -> None:
        self.stdout.write(what if isinstance(what, str) else msgspec.json.encode(what).decode())


def _group_of(instance: str) -> GroupSettings:
    group: GroupSettings | None = settings.SLUICE_GROUP
    if group is None:
        raise OperatorError(
            "no_group",
            f"{instance} is carried by a broker by itself here.",
            "Set SLUICE_GROUP_ENGINES and SLUICE_GROUP_MEMBER as for the broker (docs/group.md).",
        )
    return replace(group, instance=instance)


def _done(
    act: str,
    plan: reseed.Plan,
    own: reseed.Places,
    source: reseed.Places | None,
    group: GroupSettings,
    found: Attached | None,
    now: str,
    say: reseed.Say,
) -> reseed.Receipt:
    if act == "init":
        return asyncio.run(reseed.init(plan, own, found, engine_of(group), now, say))
    assert found is not None, "the plan refuses without a log"
    return reseed.reseed(plan, own, source, found, now, say)


def _record(instance: str, member: str, receipt: reseed.Receipt) -> None:
    """The database compares what it knows of the log with what a broker finds when it starts. One that is away learns it then."""
    with suppress(DatabaseError):
        record_log(instance, UUID(receipt.plan.log), receipt.records, member)


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
    for title, justify in (("member", "left"), ("", "left"), ("applied", "right"), ("behind", "right"), ("record", "right"), ("lag", "right"), ("waited for", "left"), ("hash there", "left")):  # fmt: skip
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for one in status.members:
        how = "here" if one.name == status.member else "away" if not one.there else _LIKE[one.alike]
        table.add_row(
            one.name,
            how,
            str(one.applied),
            "unknown" if one.behind is None else str(one.behind),
            str(one.sequence),
            f"{one.lag_ms / 1_000:.1f} s",
            _mode(one),
            one.chain or "unknown",
        )
    console.print(table)


def _show_links(links: Links, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("link", "", "behind", "confirmed", "waited for"):
        table.add_column(title, justify="right" if title in ("behind", "confirmed") else "left")
    for one in links.links:
        table.add_row(one.client, one.state, str(one.behind), str(one.confirmed), _mode(one))
    console.print(table)


def _mode(one: MemberEntry | LinkEntry) -> str:
    if one.mode == "downgraded":
        at = datetime.fromtimestamp(one.downgraded_at / 1_000, UTC)
        since = f", {at:%Y-%m-%d %H:%M} UTC" if one.downgraded_at else ""
        return f"downgraded by {one.downgraded_by}{since}"
    if one.mode == "sync" and one.unconfirmed_ms > 1_000:
        return f"sync, for {one.unconfirmed_ms / 1_000:.1f} s"
    return one.mode


_LIKE = {None: "not compared yet", True: "the same", False: "DIFFERS"}
