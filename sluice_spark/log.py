"""A snapshot of a log, taken before a job writes anything: identity, segments, durable frontier and gaps.

A log begins with record 1. A missing beginning was either removed, which the broker records
(`broker_core.journal.removal_records`), or is missing for an unknown reason. Both are gaps. Every reader
describes them in the same words: a new lake, an existing one, the data source.
"""

from __future__ import annotations

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
_NAMED = 5


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
        told: dict[str, Any] = {"first": self.first, "last": self.last, "why": self.why}
        if self.removed_at:
            told["removed_at"] = _moment(self.removed_at)
        return told

    def __str__(self) -> str:
        records = f"records {self.first} to {self.last}"
        if self.why == REMOVED:
            return f"{records} were removed" + (f" {_moment(self.removed_at)}" if self.removed_at else "")
        if self.why == UNKNOWN:
            return f"it isn't known whether {records} existed: the segment header that said so was damaged"
        return f"{records} are missing, and nothing says that they were removed"


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """State of a log at one moment. `place.log` is its identity."""

    place: LogLocation
    segments: tuple[int, ...]
    frontier: int
    """The newest sequence that may be read; 0 for none."""
    removals: tuple[RemovalRecord, ...]

    @property
    def first(self) -> int:
        """The oldest stored record; without records the sequence after the frontier."""
        return self.segments[0] if self.segments else self.frontier + 1

    def gaps(self, first: int, last: int) -> list[LogGap]:
        """Return what an interval lacks, oldest first, as far as known without reading records."""
        found = [*self._before(), *self._between()]
        cut = [gap._replace(first=max(gap.first, first), last=min(gap.last, last)) for gap in found]
        real = [gap for gap in cut if gap.first <= gap.last]
        if not real:
            return []
        skipped = self.skipped()
        return [
            gap._replace(first=begin, last=end)
            for gap in real
            for begin, end in skipped.gaps_between(gap.first, gap.last)
        ]

    def _before(self) -> Iterable[LogGap]:
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

    def _between(self) -> Iterable[LogGap]:
        for segment, following in pairwise(self.segments):
            known = sidecar_summary(self.place, segment)
            if known is not None and known.last_sequence + 1 < following:
                why = UNKNOWN if are_skips_unknown(self.place, following) else MISSING
                yield LogGap(known.last_sequence + 1, following - 1, why)

    def end_of(self, number: int) -> int:
        """Return the last sequence that a segment (by index) may have.

        Up to the next segment, or to the frontier.
        """
        if number + 1 == len(self.segments):
            return self.frontier
        following, known = self.segments[number + 1], sidecar_summary(self.place, self.segments[number])
        if known is not None and known.last_sequence + 1 == following:
            return following - 1
        return (skipped_before(self.place, following) or following) - 1

    def skipped(self) -> SequenceSet:
        """Return the sequences that were skipped: they name no record and never will, so they are no gap.

        See journal/segment.py.
        """
        found = SequenceSet()
        if self.first > 1 and self.segments and (begin := skipped_before(self.place, self.first)):
            found.add(begin, self.first - 1)
        for number, following in enumerate(self.segments[1:]):
            if (end := self.end_of(number)) + 1 < following:
                found.add(end + 1, following - 1)
        return found


def examine_log(place: LogLocation, durable: int | None = None) -> LogSnapshot:
    """Take a snapshot of a log.

    `durable`: the durable frontier, if the caller knows it better than the broker's file. Raises
    OperatorError no_journal if there is no log, other_log if it isn't the log that `place` names.
    """
    _check_directories(place)
    segments = tuple(first_sequences(place))
    if not segments and not frontier_path(place.directory, place.instance).exists():
        others = _instances(place)
        raise OperatorError(
            "no_journal",
            f"There is no journal of {place.instance} in {place.directory}"
            f"{'; there is one of ' + ', '.join(others) if others else ''}.",
            "Check the instance's name (the option instance; of a job --instance or "
            "SLUICE_INSTANCE) and the directory.",
            instances=others,
        )
    identity = _identity(place, segments)
    if None not in (identity, place.log) and identity != place.log:
        raise other_log_error(place.instance, f"the log in {place.directory} is", identity, place.log)
    found = replace(place, log=identity or place.log)
    frontier = durable_sequence(found) if durable is None else durable
    return LogSnapshot(found, segments, frontier, tuple(read_removals(place.directory, place.instance)))


_UNREADABLE = "one whose identity can't be read"


def other_log_error(instance: str, what: str, found: str | None, expected: str | None) -> OperatorError:
    """Return the error for two logs of one name."""
    return OperatorError(
        "other_log",
        f"There are two logs of the name {instance}: {what} {found or _UNREADABLE}, and "
        f"{expected or 'another'} was expected.",
        "They can't be mixed: use the journal that belongs to it, or write to another place.",
        found=found,
        expected=expected,
    )


def gap_error(gap: LogGap, log: LogSnapshot) -> JournalError:
    """Return the error for a gap that the options don't allow."""
    return JournalError(
        "bookmark_gone",
        f"{str(gap)[:1].upper()}{str(gap)[1:]}.",
        f"Bring their segments back, start at {gap.last + 1}, or allow gaps (--skip-gaps; gaps=note).",
        first=gap.first,
        last=gap.last,
        why=gap.why,
        oldest=log.first,
    )


def _check_directories(place: LogLocation) -> None:
    for what, option, directory in (
        ("journal", "path", place.directory),
        ("archive", "archive", place.archive),
    ):
        if directory is not None and not directory.is_dir():
            raise OperatorError(
                "no_journal",
                f"There is no {what} directory {directory}.",
                f"Check the option {option}; of a job --{what}, SLUICE_{what.upper()}_DIRECTORY, or --home.",
            )


def _instances(place: LogLocation) -> list[str]:
    """Return the names of some instances whose segments are in the journal's directory."""
    names: set[str] = set()
    for path in place.directory.iterdir():
        if path.name.endswith((SUFFIX, SUFFIX_COMPRESSED)):
            try:
                names.add(parse_segment_path(Path(path))[0])
            except OperatorError:
                continue
    return sorted(names)[:_NAMED]


def _identity(place: LogLocation, segments: tuple[int, ...]) -> str | None:
    """Return the log's identity from its newest segments; None if no header can be read."""
    for segment in reversed(segments[-2:]):
        try:
            return read_log_id(open_segment(replace(place, log=None), segment))
        except JournalError as error:
            if error.code != "journal_damaged":
                raise
            # The header can't be read. The segment before belongs to the same log.
    return None


def _moment(at: int) -> str:
    return f"{datetime.fromtimestamp(at // 1_000_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"
