"""Looking through a log without a broker, or beside one: which records match, and where a bookmark stands.

Reads current, sealed, archived and compressed segments alike, takes no lock and changes nothing. Segments, and within
them stretches of some 64 KiB, that can't hold a match by their sidecar aren't read; what is read is checked. Rows are
chosen by numpy, and only records that match are cut out of their batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from broker_core.batch import Batch, Rows, hash64
from broker_core.bookmark import MAX_SEQUENCE
from broker_core.filters import DecoderOf, Filter
from broker_core.journal import sidecar
from broker_core.journal.frontier import read_frontier
from broker_core.journal.index import SegmentIndex, Stretch
from broker_core.journal.maintenance import Progress, silent
from broker_core.journal.reader import CUT, ZEROS, Source, next_batch, open_source, walk
from broker_core.journal.segment import HEADER_SIZE, SegmentFile, index_path, segment_name
from broker_core.journal.tools.inspect import segment_files
from broker_core.journal.tools.records import EVERY_TOPIC
from broker_core.subscriptions.subscription import EMPTY, Subscription, select_rows
from broker_core.subscriptions.topics import TopicPattern

CHUNK = 4 * 1024 * 1024
CLOCK_SLACK_NS = 3_600 * 10**9
"""How far a clock may have been set back for `until` to be exact all the same."""
END_OF_TIME = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for. Sequences `first` to `last`, accepted from `since` on and before `until` (ns UTC)."""

    pattern: TopicPattern | None = None
    filter: Filter | None = None
    decoder_of: DecoderOf | None = None
    publisher: str | None = None
    first: int = 1
    last: int = MAX_SEQUENCE
    since: int = 0
    until: int = END_OF_TIME


class Found(NamedTuple):
    """A batch with matches: its segment's file, its offset there (uncompressed), the rows that match (None: all)."""

    segment: str
    offset: int
    batch: Batch
    rows: Rows | None

    @property
    def chosen(self) -> Rows:
        """The numbers of the rows."""
        return np.arange(self.batch.count) if self.rows is None else self.rows


class LogPlace(NamedTuple):
    """Where an instance's log is."""

    directory: Path
    instance: str
    archive: Path | None = None


class Search:
    """One pass over a log, oldest first. `problems` are sentences on what couldn't be read."""

    def __init__(self, place: LogPlace, query: Query, progress: Progress = silent) -> None:
        frontier = read_frontier(place.directory, place.instance)
        self._place = place
        self._query = query
        self._wanted = Subscription(
            None, "search", 0, query.pattern or EVERY_TOPIC, query.filter, query.decoder_of
        )
        self._last = min(query.last, MAX_SEQUENCE if frontier is None else frontier)
        self._publisher = None if query.publisher is None else hash64(query.publisher)
        self._progress = progress
        self._done = self._total = 0
        self.problems: list[str] = []

    def __iter__(self) -> Iterator[Found]:
        """The matches, batch by batch. Raises OperatorError no_journal when there is no such directory."""
        files = segment_files(*self._place)
        planned = [(file, index) for file, index in self._known(files) if self._may_hold(index)]
        self._total = sum(_size(file, index) for file, index in planned)
        self._progress(0, self._total)
        for file, index in planned:
            before = self._done
            yield from self._segment(file, index)
            self._done = before + _size(file, index)
            self._progress(self._done, self._total)

    def _known(self, files: list[SegmentFile]) -> Iterator[tuple[SegmentFile, SegmentIndex | None]]:
        ends = [*(file.first_sequence for file in files[1:]), MAX_SEQUENCE]
        for file, end in zip(files, ends, strict=False):
            first = file.first_sequence
            if first <= self._last and end > self._query.first:
                yield file, sidecar.load_summary(index_path(file.path), self._place.instance, first)

    def _may_hold(self, index: SegmentIndex | None) -> bool:
        query = self._query
        return index is None or (
            index.last_sequence >= query.first
            and index.last_at >= query.since
            and index.first_at - CLOCK_SLACK_NS < query.until
        )

    def _segment(self, file: SegmentFile, index: SegmentIndex | None) -> Iterator[Found]:
        try:
            path, source = open_segment(self._place, file.first_sequence)
        except FileNotFoundError:
            self.problems.append(f"{file.path.name} was removed meanwhile.")
            return
        whole = sidecar.load(index_path(path), self._place.instance, file.first_sequence) if index else None
        begin = self._done
        for _, _, start, end in self._stretches(whole, source):
            for offset, batch in self._batches(path, source, start, end):
                rows = self._rows(batch)
                self._done = begin + offset
                if rows is None or len(rows):
                    yield Found(path.name, offset, batch, rows)
            self._progress(self._done, self._total)

    def _stretches(self, index: SegmentIndex | None, source: Source) -> list[Stretch]:
        """The parts of a segment that may hold a match, by its sidecar; all of it without one."""
        if index is None or index.topic_index is None:
            return [Stretch(0, MAX_SEQUENCE, HEADER_SIZE, source.length)]
        wanted = index.topic_index.matching(self._wanted.pattern.matches)
        return index.stretches(wanted, self._query.first, self._last, self._query.since)

    def _batches(self, path: Path, source: Source, offset: int, end: int) -> Iterator[tuple[int, Batch]]:
        after = 0
        while offset < end:
            found = walk(source, offset, end, CHUNK)
            yield from zip(found.offsets, found.batches, strict=True)
            if found.batches:
                after = found.batches[-1].last_sequence
                if after >= self._last:
                    return
            offset = found.stopped_at
            self._progress(self._done, self._total)
            if found.problem in (ZEROS, CUT) and end == source.length:
                return  # the content's end, or what a broker is writing just now
            if found.problem is not None:
                following = next_batch(source, offset, end, hash64(self._place.instance), after)
                self.problems.append(f"{path.name} is damaged at byte {offset}: {found.problem}.")
                if following is None:
                    return
                offset = following

    def _rows(self, batch: Batch) -> Rows | None:
        query, header = self._query, batch.header
        if (
            (self._publisher is not None and header.publisher != self._publisher)
            or not query.since <= header.accepted_at < query.until
            or batch.last_sequence < query.first
            or header.first_sequence > self._last
        ):
            return EMPTY
        return select_rows(self._wanted, batch, query.first, upto=self._last)


def open_segment(place: LogPlace, first_sequence: int) -> tuple[Path, Source]:
    """A segment's file in whichever form it has now. FileNotFoundError when it has none.

    Looked for in the order in which the forms follow one another in a segment's life: the next is there before the
    one before is gone, so that a swap meanwhile doesn't hide it.
    """
    for directory in (place.directory, place.archive):
        for compressed in (False, True):
            if directory is not None:
                path = directory / segment_name(place.instance, first_sequence, compressed=compressed)
                try:
                    return path, open_source(path)
                except FileNotFoundError:
                    continue
    raise FileNotFoundError(segment_name(place.instance, first_sequence))


def _size(file: SegmentFile, index: SegmentIndex | None) -> int:
    if index is not None:
        return index.end
    try:
        return file.path.stat().st_size
    except FileNotFoundError:
        return 0
