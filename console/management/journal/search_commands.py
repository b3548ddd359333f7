"""Sub-commands `journal grep`, `find` and `stat`: options, output, and progress."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import orjson
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from broker_core.bookmark import MAX_SEQUENCE, AfterBookmarks, AtTime, Bookmark, parse_bookmark
from broker_core.config.instance import MESSAGE_TYPES
from broker_core.errors import ClientError, OperatorError
from broker_core.filters import DecoderOf, compile_filter
from broker_core.filters.message_types import decoder_for
from broker_core.journal.tools.inspect import record_lines
from broker_core.journal.tools.search import (
    COLUMNS,
    END_OF_TIME,
    GroupCount,
    LogLocation,
    LogQuery,
    LogSearch,
    count_records,
    locate_record,
)
from broker_core.safe_text import to_json_line
from broker_core.subscriptions.topics import TopicPattern
from console.management.safe_command import SafeConsole, SafeOutput
from console.services import journal_directories
from console.units.ages import parse_age

Show = Callable[[int, int], None]
"""Called with the bytes read so far and in total."""

GREP_HELP = """Print matching records as JSON lines, oldest first. Works with or without a running broker.
Reads archived and compressed segments too, and skips segments that can't contain a match.

  journal grep --topic 'orders.>' --filter "/price > 100" --limit 10
  journal grep --publisher loader-3 --since 2h
  journal grep --since 20261121T090000Z --until 20261121T100000Z --topic quotes | jq .data
  journal grep --topic fix.orders --filter "/35 = 'D'"
  journal grep --directory copies --topic fix.orders --message-type fix --filter "/35 = 'D'"
  journal grep --from 'sluice-1|1000|' --to 'sluice-1|2000|'
"""
FIND_HELP = """\
Print the position of a bookmark as JSON: the segment's file, the offset of the batch and the row.
Also accepts a time (the first record accepted at or after it) and 0 (the oldest record). If there
is no such record, the command prints the adjacent records; the exit code is then 1.

  journal find 'sluice-1|4711|'
  journal find 20261121T090000Z"""
STAT_HELP = """Count records and their bytes (headers and bodies) by topic, by publisher and by hour (UTC).
--by counts by a combination instead. The filters of `journal grep` select a part of the log.

  journal stat
  journal stat --by topic,hour --since 1d
  journal stat --topic 'orders.>' --by publisher --json
"""


class SubCommands(NamedTuple):
    """Factory of sub-commands. `add` creates a parser from a name and keyword arguments."""

    add: Callable[..., ArgumentParser]

    def parser(self, name: str, short: str, long: str) -> ArgumentParser:
        """Return a new sub-command's parser, whose long help is printed with its own line breaks."""
        return self.add(name, help=short, description=long, formatter_class=RawDescriptionHelpFormatter)


def add_parsers(commands: SubCommands) -> list[ArgumentParser]:
    """Add grep, find and stat, and return their parsers.

    The caller adds the options for the log's location.
    """
    grep = commands.parser("grep", "print matching records as JSON lines", GREP_HELP)
    grep.add_argument("--limit", type=_positive, metavar="N", help="maximum number of records")
    find = commands.parser("find", "print the position of a bookmark: segment and offset", FIND_HELP)
    find.add_argument("bookmark", help="<instance>|<sequence>|, a time such as 20261121T134500Z, or 0")
    stat = commands.parser("stat", "count records and bytes by topic, publisher and hour", STAT_HELP)
    stat.add_argument(
        "--by", type=_columns, metavar="COLUMN,…", help=f"of {', '.join(COLUMNS)}; default: each separately"
    )
    stat.add_argument(
        "--top", type=_positive, default=20, metavar="N", help="rows shown of each (default: %(default)s)"
    )
    stat.add_argument("--json", action="store_true", help="JSON lines, all rows, instead of a table")
    for parser in (grep, stat):
        _add_query(parser)
    return [grep, find, stat]


def _add_query(parser: ArgumentParser) -> None:
    """Add the options that select records, which grep and stat share."""
    parser.add_argument(
        "--topic", metavar="PATTERN", help="a topic, a.*.b, a.> or ~regex (default: every topic)"
    )
    parser.add_argument("--filter", metavar="EXPRESSION", help="filter over the content: docs/filters.md")
    parser.add_argument(
        "--message-type",
        choices=MESSAGE_TYPES,
        help="how --filter reads bodies (default: by its policy; json with --directory)",
    )
    parser.add_argument(
        "--separator",
        default="\x01",
        help="separator of the fields with --message-type fix or nvfix (default: SOH)",
    )
    parser.add_argument("--publisher", metavar="NAME", help="only records that this client published")
    parser.add_argument(
        "--since",
        type=_moment,
        default=0,
        metavar="MOMENT",
        help="accepted at or after a time: 20261121T134500Z, or an age such as 2h",
    )
    parser.add_argument(
        "--until", type=_moment, default=END_OF_TIME, metavar="MOMENT", help="accepted before a time"
    )
    parser.add_argument(
        "--from",
        type=_sequence,
        default=1,
        dest="first",
        metavar="BOOKMARK",
        help="this record or later ones",
    )
    parser.add_argument(
        "--to",
        type=_sequence,
        default=MAX_SEQUENCE,
        dest="last",
        metavar="BOOKMARK",
        help="this record or earlier ones",
    )


def parse_query(options: dict[str, Any]) -> LogQuery:
    """Return the query that the options describe. Raises ClientError `bad_pattern` or `bad_filter`."""
    return LogQuery(
        TopicPattern.parse(options["topic"]) if options["topic"] else None,
        compile_filter(options["filter"]) if options["filter"] else None,
        _decoder_of(options) if options["filter"] else None,
        options["publisher"],
        options["first"],
        options["last"],
        options["since"],
        options["until"],
    )


def _decoder_of(options: dict[str, Any]) -> DecoderOf | None:
    """Return the decoder of bodies for the filter; None means JSON."""
    if options["message_type"] is not None:
        decoder = decoder_for(options["message_type"], options["separator"])
        return lambda topic: decoder
    return (
        None
        if options["directory"] is not None
        else journal_directories.decoder_without_database(options["instance"])
    )


def run_grep(location: LogLocation, options: dict[str, Any], out: SafeOutput) -> list[str]:
    """Write the matching records as JSON lines, and return the problems of unreadable parts."""
    remaining = options["limit"] or MAX_SEQUENCE
    with progress_bar("Searching") as show:
        search = LogSearch(location, parse_query(options), show)
        for found in search:
            rows = found.selected_rows[:remaining]
            out.writelines(
                line.decode() + "\n"
                for line in record_lines(found.batch, rows, location.instance, found.segment)
            )
            remaining -= len(rows)
            if remaining <= 0:
                break
    return search.problems


def run_find(location: LogLocation, options: dict[str, Any], out: SafeOutput) -> list[str]:
    """Write the position of a bookmark, and return a problem if the log doesn't have it."""
    with progress_bar("Looking") as show:
        found = locate_record(location, options["bookmark"], show)
    out.write_block(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
    return [] if found["state"] == "found" else [f"{options['bookmark']} isn't in the log: {found['state']}."]


def run_stat(location: LogLocation, options: dict[str, Any], out: SafeOutput) -> list[str]:
    """Write the counts, and return the problems of unreadable parts."""
    bys = [options["by"]] if options["by"] else [(column,) for column in COLUMNS]
    with progress_bar("Counting") as show:
        search = LogSearch(location, parse_query(options), show)
        counted = count_records(search, *bys)
    for by, counts in counted:
        if options["json"]:
            for one in counts:
                line = {**dict(zip(by, one.values, strict=True)), "records": one.records, "bytes": one.nbytes}
                out.write(to_json_line(line).decode())
        else:
            _table(by, counts, options["top"], out)
    return search.problems


def _table(by: tuple[str, ...], counts: list[GroupCount], top: int, out: SafeOutput) -> None:
    """Print counts as a table with at most `top` rows, and a row with the totals."""
    # Hours are in ascending order: show the newest ones, which are last.
    shown = counts[-top:] if by == ("hour",) else counts[:top]
    names = [" ".join(one.values) for one in shown]
    width = max([len(name) for name in names] + [len(" ".join(by)), 24])
    out.write(f"{' '.join(by):<{width}} {'records':>15} {'bytes':>20}\n")
    for name, one in zip(names, shown, strict=True):
        out.write(f"{name:<{width}} {one.records:>15,} {one.nbytes:>20,}\n")
    records, nbytes = sum(one.records for one in counts), sum(one.nbytes for one in counts)
    more = f", {len(counts) - len(shown):,} not shown" if len(shown) < len(counts) else ""
    out.write(f"{f'{len(counts):,} in all{more}':<{width}} {records:>15,} {nbytes:>20,}\n")
    out.write()


@contextmanager
def progress_bar(label: str) -> Iterator[Show]:
    """Show a progress bar on stderr if that is a terminal. Yields a function to update it."""
    bar = Progress(
        TextColumn(label),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=SafeConsole(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# Types of options' values.


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text} isn't a number above 0")
    return int(text)


def _columns(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if unknown := [column for column in chosen if column not in COLUMNS]:
        raise ArgumentTypeError(f"there is no column {unknown[0]}; there are {', '.join(COLUMNS)}")
    return tuple(dict.fromkeys(chosen))


def _moment(text: str) -> int:
    try:
        bookmark = parse_bookmark(text)
    except ClientError:
        try:
            return time.time_ns() - parse_age(text) * 10**9
        except OperatorError as problem:
            raise ArgumentTypeError(
                f"{text} is neither a time such as 20261121T134500Z nor an age such as 2h"
            ) from problem
    if not isinstance(bookmark, AtTime):
        raise ArgumentTypeError(f"{text} isn't a time such as 20261121T134500Z")
    return bookmark.at


def _sequence(text: str) -> int:
    if text.isdigit():
        return int(text)
    try:
        bookmark = parse_bookmark(text)
    except ClientError as problem:
        raise ArgumentTypeError(problem.sentence) from problem
    match bookmark:
        case AfterBookmarks((Bookmark(_, sequence),)):
            return sequence
    raise ArgumentTypeError(f"{text} isn't one bookmark")
