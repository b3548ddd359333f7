"""Finds and reads segments beside a running broker. It takes no lock and writes nothing.

The broker may move a segment meanwhile: live, live compressed, archived, archived compressed. For a moment
two forms exist. So a span names its segment by the first sequence. The file is searched when it is opened,
in the order of these forms. An open file stays readable after a move.
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
"""Bytes of one read.

Large enough to make few calls; small enough to stay in the processor's cache, in reused memory.

With 4 MiB a scan took a quarter longer, and one that decodes little took twice as long.
"""
ONE_MEMBER = 0
"""Bytes of inflated gzip members to cache. The newest is always cached, and a forward scan needs no other.

With 32 MiB, the broker's value for replays, each member missed the processor's cache, which cost a tenth of
the inflating time.
"""
_TRIES = 20
"""Attempts to open a segment, _PAUSE_SECONDS apart."""
_PAUSE_SECONDS = 0.05


class SidecarHint(NamedTuple):
    """Ranges of a segment that may match a request, according to its sidecar."""

    topics: tuple[str, ...]
    times: tuple[int | None, int | None]
    """With `topics`, the request for which the hint was made. It isn't used for another request."""
    stretches: tuple[IndexedRange, ...]
    """Ranges that may have matching records."""
    names: frozenset[bytes]
    """Matching topics of the segment, if all are known and they are few; else empty."""


class SegmentSpan(NamedTuple):
    """Records `first` to `last` (inclusive) of a segment. Workers receive spans, never paths."""

    segment: int
    first: int
    last: int
    nbytes: int = 0
    """Approximate raw bytes, to divide the work."""
    choice: SidecarHint | None = None
    """Ranges to read, if they are few; None: the reader finds them."""


def first_sequences(place: LogLocation) -> list[int]:
    """Return the first sequence of every segment, ascending. Raises JournalError journal_failed."""
    try:
        found = find_segment_files(place.directory, place.instance, place.archive)
    except OSError as error:
        raise journal_error(error, f"listing {place.directory}") from error
    return sorted({file.first_sequence for file in found})


def segment_size(place: LogLocation, segment: int) -> int:
    """Return a segment's raw bytes from its sidecar, or its file's size without one; 0 without a file."""
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
    """Open a segment in its present form, and check that it belongs to this log.

    Raises JournalError segment_missing if there is no file, journal_failed if it can't be read, other_log.
    """
    directories = [directory for directory in (place.directory, place.archive) if directory is not None]
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_SECONDS)  # the broker may be moving the segment to another form
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
    """Return the first of the skipped sequences right before a segment (journal/segment.py); 0 for none."""
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
    """Return the segment's sidecar; None without one, or if it belongs to another file.

    The sidecar only tells which ranges can be left out. All that is read is checked anyway.
    """
    found = _sidecar(place, segment, load_sidecar)
    try:
        return found if found is not None and found.header_crc == read_header(source).crc else None
    except JournalError:
        return None


def sidecar_summary(place: LogLocation, segment: int) -> SegmentIndex | None:
    """Return the segment's sidecar without its entries: one small read. None without a sidecar."""
    return _sidecar(place, segment, load_summary)


def sidecar_positions(place: LogLocation, segment: int) -> SegmentIndex | None:
    """Return the segment's sidecar with the positions of its entries only, without inflating or parsing.

    None without one.
    """
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
    """Return the newest sequence that may be read; 0 for none.

    Later records may be written but not synced: after a power loss their sequences can name other records.
    A reader that used them would have data that never existed. The broker stores the frontier in a file
    after each sync. Without that file the last whole batch counts, as in the broker's own recovery.
    """
    noted = read_frontier(place.directory, place.instance)
    return last_sequence(place) if noted is None else noted


def last_sequence(place: LogLocation) -> int:
    """Return the last sequence before the newest segment's first torn or damaged batch; 0 in an empty log."""
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
    """Yield the checked batches that contain the span, in order. First and last batch may exceed the span.

    `at`: their position, if a sidecar has told it. Raises JournalError journal_short if records of the span
    are missing, and journal_damaged if they can't be read: skipping them silently would make a loss
    permanent. With `skip_gaps` it reads on behind them.
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
    """Return an offset at or before the span's first record, from the sidecar if that proves right."""
    if at is not None and _begins(source, at.offset, at.first, span):
        return at.offset
    if span.first > span.segment and (index := sidecar_positions(place, span.segment)) is not None:
        offset, sequence = index.find(span.first)
        if _begins(source, offset, sequence, span):
            return offset
    return HEADER_SIZE  # the sidecar belongs to other bytes; a walk from the start finds the position too


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
        f"Records {first} to {last} should be in segment "
        f"{segment_name(place.instance, span.segment)} and aren't.",
        "See `manage.py journal verify`; to go on without them, allow gaps (--skip-gaps; gaps=note).",
        segment=span.segment,
        first=first,
        last=last,
    )
