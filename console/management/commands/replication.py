"""`manage.py replication`: state and repair of this machine's group membership, and of links to other sites.

`status`, `links`, `downgrade`, `upgrade` and `forget` ask running brokers. `init`, `join` and `reseed` need
a stopped broker: each prints its plan, and performs it only with `--yes`.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import replace
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.core.management.base import CommandError
from django.db import DatabaseError
from rich.console import Console

from broker_core.errors import OperatorError, SluiceError
from broker_core.group import reseed
from broker_core.group.engine_log import StreamInfo
from broker_core.group.member import connect_log_service
from broker_core.group.settings import GroupSettings
from broker_core.safe_text import escape_json
from console.broker_link import link_to
from console.management.replication_text import links_as_json, show_group, show_links
from console.management.safe_command import SafeCommand, SafeConsole
from console.queries.group import current_group, is_group_healthy
from console.queries.links import current_links
from console.services.journal_directories import (
    accept_log,
    directories_without_database,
    known_group,
    known_log_now,
)
from console.services.manual_downgrades import (
    change_link,
    change_member,
    forget_member,
    is_link,
    resolve_name,
)

BY_ITSELF = "a broker by itself"
_STATUS = """\
State of the group as the member on this machine reports it, and of each link as its member reports
it.

member: here, the same (equal hash of the journal), DIFFERS, not compared yet, or away
waited for: sync, downgraded (with the operator and the time), or async, of `fully_durable` and of
sync_topics

Exit code 1: this member is inactive, a member is away or differs, a NATS server isn't current, or a
link is away. A standalone broker has only links. docs/group.md and docs/sites.md describe each
state and its remedy."""
_LINKS = """\
Address, state and backlog of each destination of the policy, and whether publishers wait for it.

state: carrying; away (with the reason and the remedy); standby (another member runs the link); off
(by policy)
waited for: async (no publisher waits), sync (with the present wait), or downgraded (with the
operator and the time)
behind: records of the log, of all topics, that the link has not processed; lag: age of the oldest
of them

Exit code 1: a link is away, or a broker isn't reachable. The page Replication shows the same
states; docs/sites.md lists the codes."""
_CHANGE = """\
The change persists over restarts until an operator reverses it. Every member in SLUICE_BROKERS
receives it.

  replication downgrade b            a member of the group: `fully_durable` and sync_topics stop waiting
  replication downgrade newyork      a sync destination: publishers stop waiting; or link.newyork
  replication upgrade newyork        publishers wait for it again

`replication status` shows the operator and the time. The change is on disk before the command ends."""
_FORGET = """For a member whose broker was removed, and that neither sync_members of the policy nor
SLUICE_BROKERS lists. The group's brokers no longer report the member as silent, and no longer
direct clients to it. If the member starts again, the brokers register it again."""


class Command(SafeCommand):
    """State and repair of the group and of links.

    Exit code 1 of `status`: this member doesn't take part, a member is away or differs, a server of the
    log service isn't up to date, or a link is away. `links` only checks the last.
    """

    help = (
        "Show and change the group of brokers that share this instance's log, and the links to "
        "other sites. `replication COMMAND --help` describes each command."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        commands = parser.add_subparsers(
            dest="command", required=True, metavar="status|links|downgrade|upgrade|forget|init|join|reseed"
        )
        status = commands.add_parser(
            "status",
            help="state of the group and its links; exit code 1 if there is a problem",
            description=_STATUS,
            formatter_class=RawDescriptionHelpFormatter,
        )
        links = commands.add_parser(
            "links",
            help="state of the links to other sites; exit code 1 if a link is away",
            description=_LINKS,
            formatter_class=RawDescriptionHelpFormatter,
        )
        for name, says in (
            (
                "downgrade",
                "stop waiting for a sync member or destination, until it is upgraded",
            ),
            ("upgrade", "wait for a sync member or destination again"),
        ):
            one = commands.add_parser(
                name, help=says, description=_CHANGE, formatter_class=RawDescriptionHelpFormatter
            )
            one.add_argument(
                "member",
                metavar="MEMBER|LINK",
                help="a member in sync_members of the policy, or a destination with durability sync; write "
                "link.NAME if a member has the same name",
            )
            one.add_argument("--json", action="store_true", help="JSON instead of text")
            one.add_argument(
                "--instance", default=settings.SLUICE_INSTANCE, help="the instance's name (%(default)s)"
            )
        forget = commands.add_parser(
            "forget",
            help="remove a retired member from the running brokers",
            description=_FORGET,
            formatter_class=RawDescriptionHelpFormatter,
        )
        forget.add_argument("member", metavar="MEMBER", help="its name; stop its broker first")
        init = commands.add_parser(
            "init",
            help="create a new log that continues the journal on this machine; stop the broker first",
        )
        join = commands.add_parser("join", help="create the journal of a new member; stop the broker first")
        renew = commands.add_parser(
            "reseed",
            help=("move the journal on this machine aside, and copy another member's; stop the broker first"),
        )
        for one in (status, links, forget, init, join, renew):
            one.add_argument("--json", action="store_true", help="JSON instead of text")
            one.add_argument(
                "--instance", default=settings.SLUICE_INSTANCE, help="the instance's name (%(default)s)"
            )
        for one in (init, join, renew):
            one.add_argument(
                "--yes",
                action="store_true",
                help="execute the plan; without this option, the command only prints it",
            )
        init.add_argument(
            "--replace",
            action="store_true",
            help="retire the log service's stream, if it is another log or has lost its end",
        )
        init.add_argument(
            "--empty",
            action="store_true",
            help="create a log that begins with record 1, if all journals and the log service's stream "
            "are lost",
        )
        for one in (join, renew):
            one.add_argument(
                "--from",
                type=Path,
                dest="source",
                metavar="DIRECTORY",
                help="the journal directory of a healthy member, whose broker may be running, or a copy of "
                "it; default: only the log service's stream, if it still has its first entry",
            )
            one.add_argument(
                "--from-archive", type=Path, metavar="DIRECTORY", help="that member's archive directory"
            )

    def handle(self, *args: Any, command: str, **options: Any) -> None:
        try:
            if command == "status":
                self._status(**options)
            elif command == "links":
                self._links(**options)
            elif command == "forget":
                self._forget(**options)
            elif command in ("downgrade", "upgrade"):
                self._change(command, **options)
            else:
                self._plan_or_perform(command, **options)
        except SluiceError as error:
            raise CommandError(f"{error.sentence} {error.fix}".rstrip()) from None

    def _status(self, instance: str, json: bool, **options: Any) -> None:
        """Print the state of the group and of links. Exit with 1 unless all of it is healthy."""
        try:
            status = current_group(instance)
        except OperatorError as problem:
            if problem.code != "no_group":
                raise
            status = None
        links = current_links(instance)
        if json:
            document = (
                {"instance": instance, "state": BY_ITSELF} if status is None else msgspec.to_builtins(status)
            )
            self._line(document | links_as_json(links))
        else:
            console = self._console()
            show_group(status, console) if status is not None else console.print(
                f"{instance}: {BY_ITSELF}, not a member of a group", highlight=False
            )
            if links.links or links.away or status is None:
                show_links(links, console)
        if not (links.is_healthy and (status is None or is_group_healthy(status))):
            sys.exit(1)

    def _links(self, instance: str, json: bool, **options: Any) -> None:
        links = current_links(instance)
        self._line(links_as_json(links)) if json else show_links(links, self._console())
        if not links.is_healthy:
            sys.exit(1)

    def _change(self, change: str, instance: str, member: str, json: bool, **options: Any) -> None:
        brokers, by = link_to(instance), f"{getuser()} at a terminal"
        name = resolve_name(instance, member)
        if is_link(name):
            links = change_link(brokers, change, name, by)
            self._line(links) if json else show_links(current_links(instance), self._console())
        else:
            status = change_member(brokers, change, name, by)
            self._line(status) if json else show_group(status, self._console())

    def _forget(self, instance: str, member: str, json: bool, **options: Any) -> None:
        replies = forget_member(instance, member, f"{getuser()} at a terminal")
        done = [one.address.name for one in replies if one.error is None]
        failed = {
            one.address.name: f"{one.error.sentence} {one.error.fix}"
            for one in replies
            if one.error is not None
        }
        if json:
            self._line({"forgotten_by": done, "failed": failed})
        else:
            for name in done:
                self._line(f"{name} has removed {member}.")
            for name, problem in failed.items():
                self._line(f"{name}: {problem}")

    def _console(self) -> Console:
        return SafeConsole(file=self.stdout._out, width=140)

    def _plan_or_perform(self, operation: str, instance: str, json: bool, yes: bool, **options: Any) -> None:
        """Plan `init`, `join` or `reseed`, print the plan, and perform it with `--yes`."""
        group = _group_of(instance)
        directories = directories_without_database(instance)
        local = reseed.SegmentDirectories(directories.journal, directories.archive)
        source_directory = options.get("source")
        source = (
            None
            if source_directory is None
            else reseed.SegmentDirectories(source_directory, options["from_archive"])
        )
        now = datetime.now(UTC)
        found = asyncio.run(reseed.find_stream(connect_log_service(group)))
        if operation == "init" and options["empty"]:
            plan = reseed.plan_empty(local, instance, group.member, found, _known_records(instance))
        elif operation == "init":
            others = asyncio.run(reseed.has_other_entries(connect_log_service(group), found, local, instance))
            plan = reseed.plan_init(
                local, instance, group.member, found, replace=options["replace"], other_entries=others
            )
        else:
            stamp = now.strftime("%Y%m%dT%H%M%SZ")
            plan = reseed.plan_reseed(
                "join" if operation == "join" else "reseed",
                local,
                source,
                instance,
                group.member,
                found,
                stamp,
            )
        report = (lambda _: None) if json else self._print_sentence
        if not json:
            self._plan(plan)
        if not yes:
            self._line(plan if json else "Nothing was changed. Use --yes to execute the plan.")
            return
        receipt = _done(
            operation, plan, local, source, group, found, now.isoformat(timespec="seconds"), report
        )
        _record(instance, group.member, receipt)
        if json:
            self._line(receipt)
            return
        # A journal that begins empty has no hash.
        hashed = f", hash {receipt.chain}" if receipt.chain else ""
        self._line(f"Done: log {receipt.plan.log}, {receipt.records} records{hashed}.")
        self._line("Start the broker; then `manage.py replication status`.")

    def _plan(self, plan: reseed.ReseedPlan) -> None:
        self._line(f"{plan.act} {plan.member} of {plan.instance}:")
        for number, step in enumerate(plan.steps, 1):
            self._line(f"  {number}. {step}")

    def _print_sentence(self, sentence: str) -> None:
        self._line(f"  {sentence}")

    def _line(self, value: str | msgspec.Struct | dict[str, Any]) -> None:
        self.stdout.write(
            value if isinstance(value, str) else escape_json(msgspec.json.encode(value)).decode()
        )


def _group_of(instance: str) -> GroupSettings:
    """Return the settings of this machine's group. Raises OperatorError `no_group`."""
    group: GroupSettings | None = settings.SLUICE_GROUP
    if group is None:
        raise OperatorError(
            "no_group",
            f"{instance} has a standalone broker here.",
            "Set SLUICE_GROUP_ENGINES and SLUICE_GROUP_MEMBER as for the broker (docs/group.md).",
        )
    return replace(group, instance=instance)


def _done(
    operation: str,
    plan: reseed.ReseedPlan,
    local: reseed.SegmentDirectories,
    source: reseed.SegmentDirectories | None,
    group: GroupSettings,
    found: StreamInfo | None,
    now: str,
    report: reseed.ReportProgress,
) -> reseed.ReseedReceipt:
    """Perform a plan, and return its receipt."""
    if operation == "init" and plan.own is None:
        return asyncio.run(reseed.begin_empty(plan, connect_log_service(group), now, report))
    if operation == "init":
        return asyncio.run(reseed.init_group(plan, local, found, connect_log_service(group), now, report))
    assert found is not None, "the plan refuses if there is no log"
    return reseed.reseed(plan, local, source, found, now, report)


def _known_records(instance: str) -> int:
    """Return how many records the database, or the policy on disk, knows of the instance."""
    try:
        return known_group(instance).sequence
    except DatabaseError:
        known = known_log_now(instance)
        return known.sequence if known is not None else 0


def _record(instance: str, member: str, receipt: reseed.ReseedReceipt) -> None:
    """Record the new log in the database and beside the policy on disk.

    A starting broker compares it with its files.
    """
    accept_log(instance, UUID(receipt.plan.log), receipt.records, member)
