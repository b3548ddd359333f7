"""Search of a log without a broker: matching records, the location of a bookmark, and counts.

It reads current, sealed, archived and compressed segments alike, takes no lock and changes nothing. It skips
segments, and ranges of some 64 KiB in them, whose sidecar excludes a match. Every batch that it reads is
checked. NumPy selects the rows, and only matching records are extracted from their batch.

`locate_record` finds the segment file and position of a bookmark or a moment. `count_records` counts records
and bytes by topic, publisher and hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from broker_core.batch import Batch, Rows, hash64
from broker_core.bookmark import MAX_SEQUENCE, AfterBookmarks, AtTime, Bookmark, Epoch, parse_bookmark
from broker_core.errors import JournalError, OperatorError
from broker_core.filters import DecoderOf, Filter
from broker_core.journal import index_sidecar
from broker_core.journal.compressed_segment import CompressedSegmentSource
from broker_core.journal.frontier_file import read_frontier
from broker_core.journal.segment import HEADER_SIZE, SegmentFile, index_path, segment_name
from broker_core.journal.segment_copies import Progress, no_progress
from broker_core.journal.segment_index import UNKNOWN_RECORDS, IndexedRange, SegmentIndex
from broker_core.journal.segment_reader import (
    TRUNCATED,
    ZEROS,
    SegmentSource,
    find_next_batch,
    open_source,
    read_header,
    scan_batches,
    scan_segment,
)
from broker_core.journal.tools.inspect import EVERY_TOPIC, segment_files
from broker_core.subscriptions.subscription import EMPTY, TopicSubscription, select_rows
from broker_core.subscriptions.topics import TopicPattern

CHUNK = 4 * 1024 * 1024
"""Bytes per read."""
CLOCK_SLACK_NS = 3_600 * 10**9
"""Largest backward step of a clock for which a search with `until` still finds every match, ns."""
END_OF_TIME = 2**63 - 1
"""Time in ns after every record."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Search conditions: sequences `first` to `last`, accepted from `since` on, before `until` (ns UTC)."""

    pattern: TopicPattern | None = None
    filter: Filter | None = None
    decoder_of: DecoderOf | None = None
    publisher: str | None = None
    first: int = 1
    last: int = MAX_SEQUENCE
    since: int = 0
    until: int = END_OF_TIME


class SearchMatch(NamedTuple):
    """Batch with matches: its segment's file, its uncompressed offset, the matching rows (None: all)."""

    segment: str
    offset: int
    batch: Batch
    rows: Rows | None

    @property
    def selected_rows(self) -> Rows:
        """Indexes of the matching rows."""
        return np.arange(self.batch.count) if self.rows is None else self.rows


class LogLocation(NamedTuple):
    """Directories of an instance's log."""

    directory: Path
    instance: str
    archive: Path | None = None


class LogSearch:
    """Search through a log, oldest record first. `problems` describes unreadable parts in sentences."""

    def __init__(self, location: LogLocation, query: LogQuery, progress: Progress = no_progress) -> None:
        frontier = read_frontier(location.directory, location.instance)
        self._location = location
        self._query = query
        self._subscription = TopicSubscription(
            None, "search", 0, query.pattern or EVERY_TOPIC, query.filter, query.decoder_of
        )
        self._last = min(query.last, MAX_SEQUENCE if frontier is None else frontier)
        self._publisher = None if query.publisher is None else hash64(query.publisher)
        self._progress = progress
        self._searched_bytes = self._total = 0
        self.problems: list[str] = []

    def __iter__(self) -> Iterator[SearchMatch]:
        """Yield the matches batch by batch.

        Raises OperatorError no_journal when the directory does not exist.
        """
        files = segment_files(*self._location)
        planned = [(file, index) for file, index in self._known(files) if self._may_contain(index)]
        self._total = sum(_size(file, index) for file, index in planned)
        self._progress(0, self._total)
        for file, index in planned:
            before = self._searched_bytes
            yield from self._segment(file, index)
            self._searched_bytes = before + _size(file, index)
            self._progress(self._searched_bytes, self._total)

    def _known(self, files: list[SegmentFile]) -> Iterator[tuple[SegmentFile, SegmentIndex | None]]:
        """Yield the segments in the range of the query, with their sidecars' summaries."""
        ends = [*(file.first_sequence for file in files[1:]), MAX_SEQUENCE]
        for file, end in zip(files, ends, strict=False):
            first = file.first_sequence
            if first <= self._last and end > self._query.first:
                yield file, index_sidecar.load_summary(index_path(file.path), self._location.instance, first)

    def _may_contain(self, index: SegmentIndex | None) -> bool:
        """Return whether a segment may have a match, by its summary."""
        query = self._query
        return index is None or (
            index.last_sequence >= query.first
            and index.last_at >= query.since
            and index.first_at - CLOCK_SLACK_NS < query.until
        )

    def _segment(self, file: SegmentFile, index: SegmentIndex | None) -> Iterator[SearchMatch]:
        """Yield the matches of one segment."""
        try:
            path, source = open_segment(self._location, file.first_sequence)
        except FileNotFoundError:
            self.problems.append(f"{file.path.name} was removed in the meantime.")
            return
        complete_index = (
            index_sidecar.load_sidecar(index_path(path), self._location.instance, file.first_sequence)
            if index
            else None
        )
        begin = self._searched_bytes
        for _, _, start, end in self._ranges_to_read(complete_index, source):
            for offset, batch in self._batches(path, source, start, end):
                rows = self._rows(batch)
                self._searched_bytes = begin + offset
                if rows is None or len(rows):
                    yield SearchMatch(path.name, offset, batch, rows)
            self._progress(self._searched_bytes, self._total)

    def _ranges_to_read(self, index: SegmentIndex | None, source: SegmentSource) -> list[IndexedRange]:
        """Return a segment's ranges that may have a match, by its sidecar; all of it without one."""
        if index is None or index.topic_index is None:
            return [IndexedRange(0, MAX_SEQUENCE, HEADER_SIZE, source.length)]
        topic_mask = index.topic_index.mask_matching(self._subscription.pattern.matches)
        return index.ranges_to_read(topic_mask, self._query.first, self._last, self._query.since)

    def _batches(
        self, path: Path, source: SegmentSource, offset: int, end: int
    ) -> Iterator[tuple[int, Batch]]:
        """Yield the batches between two offsets; damage is added to `problems`."""
        after = 0
        while offset < end:
            found = scan_batches(source, offset, end, CHUNK)
            yield from zip(found.offsets, found.batches, strict=True)
            if found.batches:
                after = found.batches[-1].last_sequence
                if after >= self._last:
                    return
            offset = found.stopped_at
            self._progress(self._searched_bytes, self._total)
            if found.problem in (ZEROS, TRUNCATED) and end == source.length:
                return  # the end of the content, or a batch that a broker is writing now
            if found.problem is not None:
                following = find_next_batch(source, offset, end, hash64(self._location.instance), after)
                self.problems.append(f"{path.name} is damaged at byte {offset}: {found.problem}.")
                if following is None:
                    return
                offset = following

    def _rows(self, batch: Batch) -> Rows | None:
        """Return the matching rows of a batch; None for all, EMPTY for none."""
        query, header = self._query, batch.header
        if (
            (self._publisher is not None and header.publisher != self._publisher)
            or not query.since <= header.accepted_at < query.until
            or batch.last_sequence < query.first
            or header.first_sequence > self._last
        ):
            return EMPTY
        return select_rows(self._subscription, batch, query.first, upto=self._last)


def open_segment(location: LogLocation, first_sequence: int) -> tuple[Path, SegmentSource]:
    """Open a segment's file in its present form. Raises FileNotFoundError when there is none.

    The forms are tried in the order in which a segment gets them. A swap creates the next form before it
    removes the previous one, so a segment is found during a swap.
    """
    for directory in (location.directory, location.archive):
        for compressed in (False, True):
            if directory is not None:
                path = directory / segment_name(location.instance, first_sequence, compressed=compressed)
                try:
                    return path, open_source(path)
                except FileNotFoundError:
                    continue
    raise FileNotFoundError(segment_name(location.instance, first_sequence))


def _size(file: SegmentFile, index: SegmentIndex | None) -> int:
    if index is not None:
        return index.end
    try:
        return file.path.stat().st_size
    except FileNotFoundError:
        return 0


_ABSENCE_REASONS = {
    "skipped": "It was reserved for a record that was shown before it was stored, and no record ever had it.",
    "unknown": f"{UNKNOWN_RECORDS[:1].upper()}{UNKNOWN_RECORDS[1:]}.",
    "missing": "It is damaged or lost: see `journal verify`.",
}
"""Explanation of a skipped sequence."""


def locate_record(location: LogLocation, text: str, progress: Progress = no_progress) -> dict[str, Any]:
    """Find the record of a bookmark, or the first at or after a moment; "0" is the oldest record.

    Returns a dictionary whose `state` is `found`, with segment, path, uncompressed offset, row and
    description of the record; or `removed`, `missing`, `skipped` or `ahead`, with the nearest existing
    bookmarks. Raises ClientError bad_bookmark, OperatorError other_origin or bad_bookmark.
    """
    start = parse_bookmark(text)
    files = segment_files(*location)
    match start:
        case AfterBookmarks((Bookmark(origin, sequence),)):
            if origin != location.instance:
                raise OperatorError(
                    "other_origin",
                    f"{text} was accepted by {origin}; this is the log of {location.instance}.",
                    f"Look in the log of {origin}: --instance {origin}.",
                )
            query = LogQuery(first=sequence)
        case AtTime(at):
            sequence, query = 0, LogQuery(since=at)
        case Epoch():
            sequence, query = 0, LogQuery()
        case _:
            raise OperatorError(
                "bad_bookmark", f"{text} isn't one record.", "Give a bookmark, a moment, or 0."
            )
    if not files:
        return {"state": "missing", "asked": text, "why": "The log is empty."}
    if sequence and sequence < files[0].first_sequence:
        return {
            "state": "removed",
            "asked": text,
            "oldest": f"{location.instance}|{files[0].first_sequence}|",
        }
    found = next(iter(LogSearch(location, query, progress)), None)
    if found is None:
        return {"state": "ahead", "asked": text, "newest": _newest(location, files)}
    if sequence and (following := found.batch.first_sequence) > sequence:
        state = _absence(location, files, sequence)
        return {
            "state": state,
            "asked": text,
            "next": f"{location.instance}|{following}|",
            "why": _ABSENCE_REASONS[state],
        }
    return _describe(location, text, found)


def _absence(location: LogLocation, files: list[SegmentFile], sequence: int) -> str:
    """Return the state of a sequence that no record in the log has: skipped, unknown or missing.

    It is unknown between two segments when the second one's header can't be read, or was rebuilt.
    """
    number = next((number for number, file in enumerate(files) if file.first_sequence > sequence), 0)
    if number == 0:
        return "missing"
    following = files[number]
    try:
        header = read_header(open_segment(location, following.first_sequence)[1])
    except JournalError as error:
        if error.code != "journal_damaged":
            raise
        header = None
    if header is not None and not header.skips_unknown:
        return "skipped" if 0 < header.skipped_from <= sequence else "missing"
    first = files[number - 1].first_sequence
    earlier = scan_segment(open_segment(location, first)[1], location.instance, first).index
    return "unknown" if sequence > earlier.last_sequence else "missing"


def _describe(location: LogLocation, text: str, found: SearchMatch) -> dict[str, Any]:
    """Return the description of the first matching record of a batch."""
    batch, row = found.batch, int(found.selected_rows[0])
    first = int(found.segment.removeprefix(f"{location.instance}.")[:20])
    path, source = open_segment(location, first)
    return {
        "state": "found",
        "asked": text,
        "bookmark": f"{location.instance}|{batch.first_sequence + row}|",
        "segment": path.name,
        "path": str(path),
        "archived": path.parent == location.archive,
        "compressed": isinstance(source, CompressedSegmentSource),
        "offset": found.offset,
        "row": row,
        "batch_bytes": batch.nbytes,
        "batch_records": batch.count,
        "member_offset": _member(source, found.offset),
        "accepted_at": batch.accepted_at,
        "topic": batch.topics[int(batch.topic_indexes[row]) - 1],
        "publisher": batch.publisher_name,
        "publisher_sequence": int(batch.publisher_sequences()[row]),
    }


def _member(source: SegmentSource, offset: int) -> int | None:
    """Return the file offset of the gzip member with the batch; None in an uncompressed segment."""
    if not isinstance(source, CompressedSegmentSource):
        return None
    return next(member.offset for member in reversed(source.members) if member.raw_offset <= offset)


def _newest(location: LogLocation, files: list[SegmentFile]) -> str | None:
    """Return the newest bookmark of the log; None when it has no record."""
    for file in reversed(files):
        index = index_sidecar.load_summary(index_path(file.path), location.instance, file.first_sequence)
        if index is not None:
            return f"{location.instance}|{index.last_sequence}|"
        found = LogSearch(location, LogQuery(first=file.first_sequence))
        if last := max((one.batch.last_sequence for one in found), default=0):
            return f"{location.instance}|{last}|"
    return None


COLUMNS = ("topic", "publisher", "hour")
MAX_GROUPS = 1_000_000
"""Maximum number of groups per combination of columns."""
_HOUR_NS = 3_600 * 10**9


class GroupCount(NamedTuple):
    """Count of one group: values of its columns, its records, and the bytes of their headers and bodies."""

    values: tuple[str, ...]
    records: int
    nbytes: int


_Sums = dict[tuple[str | int, ...], list[int]]
"""Records and bytes by the values of some columns; an hour is its number since 1970."""


def count_records(
    found: Iterable[SearchMatch], *bys: Sequence[str]
) -> list[tuple[tuple[str, ...], list[GroupCount]]]:
    """Count matches in one pass for each combination of COLUMNS in `bys`, as (combination, counts).

    Raises OperatorError too_many_groups when a combination has more than a million groups.
    """
    combinations: list[tuple[list[int], _Sums]] = [
        ([COLUMNS.index(column) for column in by], {}) for by in bys
    ]
    for one in found:
        batch = one.batch
        table = batch.rows if one.rows is None else batch.rows[one.rows]
        lengths = table["headers"].astype(np.int64) + table["body"]
        records = np.bincount(table["topic"]).tolist()
        nbytes = np.bincount(table["topic"], weights=lengths).tolist()
        for topic, count in enumerate(records):  # topics are numbered from 1
            if not count:
                continue
            values = (batch.topics[topic - 1], batch.publisher_name, batch.accepted_at // _HOUR_NS)
            for columns, sums in combinations:
                known = sums.setdefault(tuple([values[column] for column in columns]), [0, 0])
                known[0] += count
                known[1] += int(nbytes[topic])
                if len(sums) > MAX_GROUPS:
                    raise OperatorError(
                        "too_many_groups",
                        f"There are more than {MAX_GROUPS:,} combinations of"
                        f" {', '.join(COLUMNS[column] for column in columns)}.",
                        "Count by fewer columns, or narrow what is counted.",
                    )
    return [(tuple(by), _counts(by, sums)) for by, (_, sums) in zip(bys, combinations, strict=True)]


def _counts(by: Sequence[str], sums: _Sums) -> list[GroupCount]:
    """Return the counts, largest first; in order of time when counted by the hour alone."""
    made = [
        GroupCount(tuple(map(_text, values)), records, nbytes) for values, (records, nbytes) in sums.items()
    ]
    return sorted(made) if tuple(by) == ("hour",) else sorted(made, key=lambda one: (-one.nbytes, one.values))


def _text(value: str | int) -> str:
    if isinstance(value, str):
        return value
    return datetime.fromtimestamp(value * 3_600, UTC).strftime("%Y-%m-%dT%H:00Z")
