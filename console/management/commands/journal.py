"""`manage.py journal`: inspection and repair of a journal's files, with or without a running broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from broker_core.errors import OperatorError, SluiceError
from broker_core.journal.frontier_file import KnownLog
from broker_core.journal.segment import SegmentInfo
from broker_core.journal.tools import inspect
from broker_core.journal.tools.search import LogLocation
from broker_core.safe_text import to_json_line
from console.management.journal import search_commands
from console.management.journal.log_location import add_location_arguments, log_location
from console.management.safe_command import SafeCommand
from console.services.journal_directories import accept_log, known_log_now


class Command(SafeCommand):
    """Command for journals.

    `broker_core.journal` does the work; `console.management.journal.search_commands` has searches.
    """

    help = "List, search, count, verify, dump, repair or accept the journal of an instance."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the sub-commands. All have the same options for the journal's location."""
        commands = parser.add_subparsers(
            dest="command", required=True, metavar="ls|grep|find|stat|verify|dump|repair|accept"
        )
        ls = commands.add_parser("ls", help="segments with their sequences, times and sizes")
        verify = commands.add_parser(
            "verify", help="check every batch of every segment; exit code 1 if one is damaged"
        )
        dump = commands.add_parser("dump", help="records as JSON lines")
        repair = commands.add_parser(
            "repair", help="cut a torn tail (and save its bytes), and rebuild indexes"
        )
        accept = commands.add_parser(
            "accept",
            help="accept the log in its present state, if a broker refuses to start with it",
        )
        for sub in (
            ls,
            verify,
            dump,
            repair,
            accept,
            *search_commands.add_parsers(search_commands.SubCommands(commands.add_parser)),
        ):
            add_location_arguments(sub)
        for sub in (ls, verify, repair, accept):
            sub.add_argument("--json", action="store_true", help="JSON instead of text")
        for sub in (repair, accept):
            sub.add_argument(
                "--member",
                default="",
                help="of a group: the member that owns the journal (default: SLUICE_GROUP_MEMBER)",
            )
        dump.add_argument("--from", type=int, default=1, dest="first", metavar="SEQUENCE")
        dump.add_argument(
            "--to",
            type=int,
            default=None,
            dest="last",
            metavar="SEQUENCE",
            help="default: the durable frontier",
        )
        dump.add_argument("--topic", default=None, help="only this topic, or topics that match a pattern")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run a sub-command. Sluice's errors become one line with a fix."""
        run: dict[str, Callable[..., None]] = {
            "grep": self._search,
            "find": self._search,
            "stat": self._search,
            "ls": self._ls,
            "verify": self._verify,
            "dump": self._dump,
            "repair": self._repair,
            "accept": self._accept,
        }
        try:
            run[options["command"]](log_location(options), options)
            self.stdout.flush()  # here rather than at Python's exit, so that a closed pipe is handled below
        except BrokenPipeError:
            # The reader has closed the pipe, as `head` does. Nothing may be flushed into it at the exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except SluiceError as problem:
            raise CommandError(f"{problem.sentence} {problem.fix}".strip()) from problem

    def _search(self, location: LogLocation, options: dict[str, Any]) -> None:
        """Run a search, whose output is streamed as complete lines, possibly millions."""
        search = {
            "grep": search_commands.run_grep,
            "find": search_commands.run_find,
            "stat": search_commands.run_stat,
        }[options["command"]]
        problems = search(location, options, self.stdout)
        if problems:
            raise CommandError("\n".join(problems[:100]), returncode=1)

    def _ls(self, location: LogLocation, options: dict[str, Any]) -> None:
        segments = inspect.list_segments(*location)
        if options["json"]:
            for segment in segments:
                self._line({**segment._asdict(), "path": str(segment.path)})
            return
        self.stdout.write(
            f"{'segment':<48} {'state':<10} {'first':>14} {'last':>14} {'bytes':>15}  newest record"
        )
        for segment in segments:
            self.stdout.write(_row(segment))
        self.stdout.write(
            f"{len(segments)} segments, {sum(segment.nbytes for segment in segments):,} bytes,"
            f" {sum(segment.records for segment in segments):,} records"
        )

    def _verify(self, location: LogLocation, options: dict[str, Any]) -> None:
        """Print the result for each segment. Raises CommandError if one is damaged."""
        bad = 0
        for report in inspect.verify_segments(*location):
            bad += not report.is_ok
            if options["json"]:
                self._line(report.as_dict())
                continue
            self.stdout.write(
                f"{'ok ' if report.is_ok else 'BAD'} {report.path.name}  {report.records:,} records"
            )
            if report.skipped_from:
                self.stdout.write(
                    f"      numbers {report.skipped_from} to {report.first_sequence - 1} before it were "
                    "skipped: no record had these numbers"
                )
            for hole in report.holes:
                self.stdout.write(
                    f"      records {hole.first_sequence} to {hole.last_sequence} aren't readable: "
                    f"{hole.why} (byte {hole.offset}, {hole.length} bytes)"
                )
            if report.torn_bytes:
                self.stdout.write(
                    f"      {report.torn_bytes} bytes behind the last whole batch"
                    f"{', not persisted yet' if report.unsynced else ''}"
                )
            if report.problem:
                self.stdout.write(f"      {report.problem}")
        if bad:
            raise CommandError(
                f"{bad} segments are damaged. Run `manage.py journal repair`; it saves the bytes that "
                "it cuts.",
                returncode=1,
            )

    def _dump(self, location: LogLocation, options: dict[str, Any]) -> None:
        for line in inspect.dump_records(
            *location, first=options["first"], last=options["last"], topic=options["topic"]
        ):
            self.stdout.write(line.decode())

    def _repair(self, location: LogLocation, options: dict[str, Any]) -> None:
        self._print_report(inspect.repair_journal(*location, self._known(options)), options)

    def _accept(self, location: LogLocation, options: dict[str, Any]) -> None:
        report = inspect.repair_journal(*location, self._known(options), accept=True)
        if options["directory"] is None:
            accept_log(location.instance, UUID(report["log"]), report["settled"], _local_member(options))
        self._print_report(report, options)

    def _known(self, options: dict[str, Any]) -> KnownLog | None:
        """Return the log's identity and frontier from the database or the policy on disk; None for a copy."""
        if options["directory"] is not None:
            return None
        return known_log_now(options["instance"], _local_member(options))

    def _print_report(self, report: dict[str, Any], options: dict[str, Any]) -> None:
        if options["json"]:
            self._line(report)
            return
        state = report["reason"] or "The journal needed no repair."
        self.stdout.write(
            f"{report['kept_records']:,} records retained, next is {report['next_sequence']}. {state}"
        )
        for kind, title in (
            ("set_aside", "set aside"),
            ("rebuilt_indexes", "index rebuilt"),
            ("ignored", "ignored"),
        ):
            for name in report[kind]:
                self.stdout.write(f"  {title}: {name}")

    def _line(self, document: dict[str, Any]) -> None:
        self.stdout.write(to_json_line(document).decode())


def _local_member(options: dict[str, Any]) -> str:
    """Return the member whose journal is on this machine; "" without a group.

    Raises:
        OperatorError: `unknown_member`.
    """
    group, requested = settings.SLUICE_GROUP, str(options["member"])
    local = group.member if group is not None else ""
    if local and requested and requested != local:
        raise OperatorError(
            "unknown_member",
            f"The journal on this machine is that of the member {local}, not of {requested[:80]!r}.",
            f"Run the command on the machine of {requested[:80]!r}, or select its files with --directory.",
        )
    return requested or local


def _row(segment: SegmentInfo) -> str:
    state = f"{segment.state}{' gz' if segment.compressed else ''}"
    newest = (
        datetime.fromtimestamp(segment.last_at / 1e9, UTC).isoformat(timespec="seconds")
        if segment.last_at
        else "-"
    )
    return (
        f"{segment.name:<48} {state:<10} {segment.first_sequence:>14} {segment.last_sequence:>14}"
        f" {segment.nbytes:>15,}  {newest}"
    )
