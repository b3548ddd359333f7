"""A snapshot of a log, taken before a job writes anything: identity, segments, durable frontier and gaps.

A log begins with record 1. A missing beginning was either removed, which the broker records
(`broker_core.journal.removal_records`), or is missing for an unknown reason. Both are gaps. Every reader
describes them in the same words: a new lake, an existing one, the data source.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from broker_core.errors import JournalError, OperatorError
from broker_core.journal.frontier_file import frontier_path
from broker_core.journal.removal_records import RemovalRecord, read_removals
from broker_core.journal.segment import SUFFIX, SUFFIX_COMPRESSED, parse_segment_path
from broker_core.sequence_set import SequenceSet
from sluice_spark.location import LogLocation
from sluice_spark.log_identity import read_log_id
from sluice_spark.segments import (
    are_skips_unknown,
    durable_sequence,
    first_sequences,
    open_segment,
    sidecar_summary,
    skipped_before,
)

REMOVED, MISSING, UNKNOWN = "removed", "missing", "unknown"
_MAX_NAMED_INSTANCES = 5
REMOVAL_PATIENCE_S = 30.0
"""Time in seconds without progress after which a removal counts as interrupted."""
_POLL_S = 0.05


class LogGap(NamedTuple):
    """Records `first` to `last`, which the log lacks.

    `removed_at` (ns UTC): when they were removed; 0 if unknown.
    """

    first: int
    last: int
    why: str
    removed_at: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the gap for manifests and results."""
        document: dict[str, Any] = {"first": self.first, "last": self.last, "why": self.why}
        if self.removed_at:
            document["removed_at"] = _format_time(self.removed_at)
        return document

    def __str__(self) -> str:
        records = f"records {self.first} to {self.last}"
        if self.why == REMOVED:
            return f"{records} were removed" + (
                f" {_format_time(self.removed_at)}" if self.removed_at else ""
            )
        if self.why == UNKNOWN:
            return f"it isn't known whether {records} existed: the segment header that said so was damaged"
        return f"{records} are missing, and there is no record of a removal"


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """State of a log at one moment. `location.log` is its identity."""

    location: LogLocation
    segments: tuple[int, ...]
    frontier: int
    """The newest sequence that may be read; 0 for none."""
    removals: tuple[RemovalRecord, ...]

    @property
    def first(self) -> int:
        """The oldest stored record; without records the sequence after the frontier."""
        return self.segments[0] if self.segments else self.frontier + 1

    @property
    def is_being_removed(self) -> bool:
        """Whether a receipt names the oldest segment: its removal is under way, or was interrupted."""
        return bool(self.segments) and any(one.last >= self.first for one in self.removals)

    def gaps(self, first: int, last: int) -> list[LogGap]:
        """Return what an interval lacks, oldest first, as far as known without reading records."""
        gaps = [*self._gaps_before_first(), *self._gaps_between_segments()]
        clipped = [gap._replace(first=max(gap.first, first), last=min(gap.last, last)) for gap in gaps]
        nonempty = [gap for gap in clipped if gap.first <= gap.last]
        if not nonempty:
            return []
        skipped = self.skipped_sequences()
        return [
            gap._replace(first=begin, last=end)
            for gap in nonempty
            for begin, end in skipped.gaps_between(gap.first, gap.last)
        ]

    def _gaps_before_first(self) -> Iterable[LogGap]:
        expected, end = 1, self.first - 1
        for removal in self.removals:
            if removal.first > expected and expected <= end:
                yield LogGap(expected, min(removal.first - 1, end), MISSING)
            first, last = max(removal.first, expected), min(removal.last, end)
            if first <= last:
                yield LogGap(first, last, REMOVED, removal.removed_at)
                expected = last + 1
        if expected <= end:
            yield LogGap(expected, end, MISSING)

    def _gaps_between_segments(self) -> Iterable[LogGap]:
        for segment, following in pairwise(self.segments):
            known = sidecar_summary(self.location, segment)
            if known is not None and known.last_sequence + 1 < following:
                reason = UNKNOWN if are_skips_unknown(self.location, following) else MISSING
                yield LogGap(known.last_sequence + 1, following - 1, reason)

    def segment_end(self, number: int) -> int:
        """Return the last sequence that a segment (by index) may have.

        Up to the next segment, or to the frontier.
        """
        if number + 1 == len(self.segments):
            return self.frontier
        following, known = self.segments[number + 1], sidecar_summary(self.location, self.segments[number])
        if known is not None and known.last_sequence + 1 == following:
            return following - 1
        return (skipped_before(self.location, following) or following) - 1

    def skipped_sequences(self) -> SequenceSet:
        """Return the sequences that were skipped: they name no record and never will, so they are no gap.

        See journal/segment.py.
        """
        found = SequenceSet()
        if self.first > 1 and self.segments and (begin := skipped_before(self.location, self.first)):
            found.add(begin, self.first - 1)
        for number, following in enumerate(self.segments[1:]):
            if (end := self.segment_end(number)) + 1 < following:
                found.add(end + 1, following - 1)
        return found


def examine_log(location: LogLocation, durable: int | None = None) -> LogSnapshot:
    """Take a snapshot of a log.

    `durable`: the durable frontier, if the caller knows it better than the broker's file. Raises
    OperatorError no_journal if there is no log, other_log if it isn't the log that `location` names.
    """
    _check_directories(location)
    segments = tuple(first_sequences(location))
    if not segments and not frontier_path(location.directory, location.instance).exists():
        others = _list_instances(location)
        raise OperatorError(
            "no_journal",
            f"There is no journal of {location.instance} in {location.directory}"
            f"{'; there is one of ' + ', '.join(others) if others else ''}.",
            "Check the instance's name (the option instance; of a job --instance or "
            "SLUICE_INSTANCE) and the directory.",
            instances=others,
        )
    identity = _read_identity(location, segments)
    if None not in (identity, location.log) and identity != location.log:
        raise other_log_error(
            location.instance, f"the log in {location.directory} is", identity, location.log
        )
    found = replace(location, log=identity or location.log)
    frontier = durable_sequence(found) if durable is None else durable
    return LogSnapshot(found, segments, frontier, tuple(read_removals(location.directory, location.instance)))


def examine_leased_log(
    location: LogLocation, durable: int | None = None, patience_s: float = REMOVAL_PATIENCE_S
) -> LogSnapshot:
    """Take a snapshot of a log on which the caller has written a lease.

    A removal that the lease didn't prevent may be under way: its receipt names segments that still exist.
    The snapshot is taken when they are removed. If none of them disappears for `patience_s`, it includes
    them: their broker was killed, and its successor will respect the lease. Raises as `examine_log` does.
    """
    log = examine_log(location, durable)
    deadline = time.monotonic() + patience_s
    while log.is_being_removed and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        former, log = log, examine_log(location, durable)
        if log.first != former.first:
            deadline = time.monotonic() + patience_s
    return log


_UNREADABLE = "one whose identity can't be read"


def other_log_error(instance: str, subject: str, found: str | None, expected: str | None) -> OperatorError:
    """Return the error for two logs of one name."""
    return OperatorError(
        "other_log",
        f"There are two logs of the name {instance}: {subject} {found or _UNREADABLE}, "
        f"expected was {expected or 'another'}.",
        "Use the journal that belongs to it, or write to another directory.",
        found=found,
        expected=expected,
    )


def gap_error(gap: LogGap, log: LogSnapshot) -> JournalError:
    """Return the error for a gap that the options don't allow."""
    return JournalError(
        "bookmark_gone",
        f"{str(gap)[:1].upper()}{str(gap)[1:]}.",
        f"Restore their segments, start at {gap.last + 1}, or allow gaps (--skip-gaps; gaps=note).",
        first=gap.first,
        last=gap.last,
        why=gap.why,
        oldest=log.first,
    )


def _check_directories(location: LogLocation) -> None:
    for role, option, directory in (
        ("journal", "path", location.directory),
        ("archive", "archive", location.archive),
    ):
        if directory is not None and not directory.is_dir():
            raise OperatorError(
                "no_journal",
                f"There is no {role} directory {directory}.",
                f"Check the option {option}; of a job --{role}, SLUICE_{role.upper()}_DIRECTORY, or --home.",
            )


def _list_instances(location: LogLocation) -> list[str]:
    """Return the names of some instances whose segments are in the journal's directory."""
    names: set[str] = set()
    for path in location.directory.iterdir():
        if path.name.endswith((SUFFIX, SUFFIX_COMPRESSED)):
            try:
                names.add(parse_segment_path(Path(path))[0])
            except OperatorError:
                continue
    return sorted(names)[:_MAX_NAMED_INSTANCES]


def _read_identity(location: LogLocation, segments: tuple[int, ...]) -> str | None:
    """Return the log's identity from its newest segments; None if no header can be read."""
    for segment in reversed(segments[-2:]):
        try:
            return read_log_id(open_segment(replace(location, log=None), segment))
        except JournalError as error:
            if error.code != "journal_damaged":
                raise
            # The header can't be read. The segment before belongs to the same log.
    return None


def _format_time(at: int) -> str:
    return f"{datetime.fromtimestamp(at // 1_000_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"
