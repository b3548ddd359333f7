"""Spans of the journal as whole batches, read beside a running broker: no lock is taken and nothing is written.

The broker moves a segment through live, live compressed, archived, archived compressed while we read, and two forms
stand side by side for a moment. So a span names its segment by the first sequence, and the file is looked for, in
the order of that life, at the moment it is opened. What is open stays readable after a swap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from broker_core.batch import HEADER_SIZE as BATCH_HEADER
from broker_core.batch import Batch, hash64, read_batch_header
from broker_core.errors import ClientError, JournalError
from broker_core.journal.compressed_segment import GzipMemberCache
from broker_core.journal.files import journal_error
from broker_core.journal.frontier_file import read_frontier
from broker_core.journal.index_sidecar import load_positions, load_sidecar, load_summary
from broker_core.journal.segment import (
    HEADER_SIZE,
    damaged_segment_error,
    find_segment_files,
    index_path,
    segment_name,
)
from broker_core.journal.segment_index import IndexedRange, SegmentIndex
from broker_core.journal.segment_reader import (
    TRUNCATED,
    ZEROS,
    SegmentSource,
    find_next_batch,
    open_source,
    read_header,
    scan_batches,
)
from sluice_spark.location import LogLocation
from sluice_spark.log_identity import check_log

CHUNK = 256 * 1024
"""Bytes of one read: large enough that calls cost little, small enough to stay in the processor's cache, and to be memory that
was used before: by 4 MiB a scan took a quarter more, and one that decodes little twice as much."""
ONE_MEMBER = 0
"""Bytes of inflated members to keep: the newest is kept all the same, and who only goes on needs no other. By 32 MiB, as a broker
keeps them for its replays, each member was memory that the processor's cache hadn't: a tenth of what inflating takes."""
_TRIES = 20
_PAUSE_SECONDS = 0.05


class SidecarHint(NamedTuple):
    """What a segment's sidecar says of a request."""

    topics: tuple[str, ...]
    times: tuple[int | None, int | None]
    """What was asked for: whoever asks for something else looks again."""
    stretches: tuple[IndexedRange, ...]
    """That may hold something of it."""
    names: frozenset[bytes]
    """The topics of the segment that are wanted, if all are known and they are few; else none."""


class SegmentSpan(NamedTuple):
    """The records `first` to `last`, both included, of one segment. What a worker is given: never a path."""

    segment: int
    first: int
    last: int
    nbytes: int = 0
    """Raw bytes, about; for sharing the work out."""
    choice: SidecarHint | None = None
    """What of it has to be read, where few stretches do; None: that is for the reader to find out."""


def first_sequences(place: LogLocation) -> list[int]:
    """The first sequence of every segment there is, ascending. JournalError journal_failed."""
    try:
        found = find_segment_files(place.directory, place.instance, place.archive)
    except OSError as error:
        raise journal_error(error, f"listing {place.directory}") from error
    return sorted({file.first_sequence for file in found})


def segment_size(place: LogLocation, segment: int) -> int:
    """A segment's raw bytes: by its sidecar, or its file's size while it has none."""
    known = sidecar_summary(place, segment)
    if known is not None:
        return known.end
    for directory in (place.directory, place.archive):
        for compressed in (False, True):
            if directory is not None:
                try:
                    path = directory / segment_name(place.instance, segment, compressed=compressed)
                    return path.stat().st_size
                except OSError:
                    continue
    return 0


def open_segment(place: LogLocation, segment: int) -> SegmentSource:
    """Open a segment in whichever form it has, and check that it is of this log.

    JournalError segment_missing when it has none, journal_failed when the disk refuses, other_log.
    """
    directories = [directory for directory in (place.directory, place.archive) if directory is not None]
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_SECONDS)  # a swap took away the form we were about to open
        for directory in directories:
            for compressed in (False, True):
                path = directory / segment_name(place.instance, segment, compressed=compressed)
                try:
                    source = open_source(path, GzipMemberCache(ONE_MEMBER))
                    if place.log is not None:
                        check_log(source, place.log)
                    return source
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise journal_error(error, f"reading {path.name}") from error
    raise JournalError(
        "segment_missing",
        f"No file of segment {segment_name(place.instance, segment)} is in the journal or the archive.",
        "Bring it back. If retention removed it, a new run says which records are gone.",
        segment=segment,
    )


def skipped_before(place: LogLocation, segment: int) -> int:
    """Return the first of the numbers right before a segment that name no record (journal/segment.py), or 0
    for none."""
    try:
        return read_header(open_segment(place, segment)).skipped_from
    except JournalError:
        return 0


def are_skips_unknown(place: LogLocation, segment: int) -> bool:
    """Return whether missing numbers before a segment may have been skipped: its header is or was damaged."""
    try:
        return read_header(open_segment(place, segment)).skips_unknown
    except JournalError:
        return True


def open_index(place: LogLocation, segment: int, source: SegmentSource) -> SegmentIndex | None:
    """The segment's sidecar, if it has one that is of this file. It says what needn't be read; what is read is checked all the
    same."""
    found = _sidecar(place, segment, load_sidecar)
    try:
        return found if found is not None and found.header_crc == read_header(source).crc else None
    except JournalError:
        return None


def sidecar_summary(place: LogLocation, segment: int) -> SegmentIndex | None:
    """The same without its entries: one small read."""
    return _sidecar(place, segment, load_summary)


def sidecar_positions(place: LogLocation, segment: int) -> SegmentIndex | None:
    """The same with the entries' places alone: nothing is inflated and parsed."""
    return _sidecar(place, segment, load_positions)


def _sidecar(
    place: LogLocation, segment: int, way: Callable[[Path, str, int], SegmentIndex | None]
) -> SegmentIndex | None:
    for directory in (place.directory, place.archive):
        if directory is not None:
            found = way(
                index_path(directory / segment_name(place.instance, segment)), place.instance, segment
            )
            if found is not None:
                return found
    return None


def durable_sequence(place: LogLocation) -> int:
    """The newest sequence that may be read; 0 when nothing may.

    Behind it stand records that the broker has written and not yet synced: after a power loss their sequences can
    be given to others, so a reader that took them would have data that never was. The broker notes the frontier in
    a file after each sync. Without that file it is the last whole batch, as in the broker's own recovery.
    """
    noted = read_frontier(place.directory, place.instance)
    return last_sequence(place) if noted is None else noted


def last_sequence(place: LogLocation) -> int:
    """The last sequence before the log's first torn or damaged batch, looking at its newest segment; 0 if empty."""
    for segment in reversed(first_sequences(place)):
        source, offset, last = open_segment(place, segment), HEADER_SIZE, segment - 1
        while (found := scan_batches(source, offset, source.length, CHUNK)).batches:
            offset, last = found.stopped_at, found.batches[-1].last_sequence
        if last >= segment or segment > 1:
            return last
    return 0


def read_batches(
    place: LogLocation,
    span: SegmentSpan,
    source: SegmentSource,
    *,
    at: IndexedRange | None = None,
    skip_gaps: bool = False,
) -> Iterator[Batch]:
    """The checked batches that hold the span, in order. The first and the last may hold more than the span.

    `at` is where they are, if a sidecar has said. Raises JournalError journal_short when records of the span aren't there and
    journal_damaged when they can't be read: a reader that went on in silence would make a loss permanent. With `skip_gaps` it
    goes on behind them.
    """
    offset, expected = _start(place, source, span, at), span.first
    while expected <= span.last:
        left = CHUNK if at is None else at.end - offset
        found = scan_batches(source, offset, source.length, left if 0 < left < CHUNK else CHUNK)
        for batch in found.batches:
            first = batch.header.first_sequence
            following = first + batch.header.count
            if following <= expected:
                continue
            if first > expected and not skip_gaps:
                raise _short(place, span, expected, min(first - 1, span.last))
            if first > span.last:
                return
            yield batch
            expected = following
        if offset >= source.length:
            break
        offset = found.stopped_at
        if found.problem is not None:
            if found.problem not in (ZEROS, TRUNCATED) and not skip_gaps:
                raise damaged_segment_error(source.file.path, offset, found.problem)
            whole = _behind_damage(place, source, offset, expected) if skip_gaps else None
            if whole is None:
                break
            offset = whole
    if expected <= span.last and not skip_gaps:
        raise _short(place, span, expected, span.last)


def _start(place: LogLocation, source: SegmentSource, span: SegmentSpan, at: IndexedRange | None) -> int:
    """An offset at or before the span's first record, by the sidecar if it tells the truth."""
    if at is not None and _begins(source, at.offset, at.first, span):
        return at.offset
    if span.first > span.segment and (index := sidecar_positions(place, span.segment)) is not None:
        offset, sequence = index.find(span.first)
        if _begins(source, offset, sequence, span):
            return offset
    return HEADER_SIZE  # the sidecar belongs to other bytes; walking from the start finds the place as well


def _begins(source: SegmentSource, offset: int, sequence: int, span: SegmentSpan) -> bool:
    try:
        return read_batch_header(source.read(offset, BATCH_HEADER)).first_sequence == sequence <= span.first
    except (ClientError, JournalError):
        return False


def _behind_damage(place: LogLocation, source: SegmentSource, offset: int, expected: int) -> int | None:
    return find_next_batch(source, offset, source.length, hash64(place.instance), expected - 1)


def _short(place: LogLocation, span: SegmentSpan, first: int, last: int) -> JournalError:
    return JournalError(
        "journal_short",
        f"Records {first} to {last} should be in segment {segment_name(place.instance, span.segment)} and aren't.",
        "See `manage.py journal verify`; to go on without them, allow gaps (--skip-gaps; gaps=note).",
        segment=span.segment,
        first=first,
        last=last,
    )
