"""Reading the log by sequence, position or time, over current, sealed, archived and compressed segments.

* `ReaderThread`: the one thread in which the log and spools are read, so a slow disk never stops the event
  loop.
* `SealedTopicLookup`: index of the topics of sealed segments, so that a queue or a replay skips segments
  without its topics. A segment's sidecar lists the ranges with each topic. It is read once, on demand. Four
  bytes per topic stay in memory, enough to skip a segment, and the ranges of recently requested topics. Its
  answer is either certain ("no record of these topics up to there"), or a reason to read.
* `LogReader`: the segments and all reads. It takes no lock: `segments` is an immutable tuple, replaced as a
  whole when the journal rolls, swaps or removes segments.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from threading import Lock
from typing import Final, ParamSpec, TypeVar
from uuid import UUID

from broker_core.batch import Batch, hash64
from broker_core.clock import Clock, thread_cpu_seconds
from broker_core.errors import JournalError
from broker_core.journal.files import journal_error
from broker_core.journal.index_sidecar import load_sidecar
from broker_core.journal.open_segments import OpenFileCache, Segment
from broker_core.journal.segment import BatchPosition, damaged_segment_error, index_path
from broker_core.journal.segment_index import IndexedRange, MissingRange, SegmentIndex
from broker_core.journal.segment_reader import SEEK_CHUNK, SegmentSource, find_next_batch, scan_batches

T = TypeVar("T")
P = ParamSpec("P")


class ReaderThread:
    """Thread that reads the disk. Reads run in the order of the requests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "reader")
        self.last_read_ms = 0
        """Duration of the last read in ms, including its wait in the queue."""
        self.worked_s = 0.0
        """CPU seconds of the last read."""
        self.pending = 0
        """Number of requested reads that are not done."""

    def run(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> asyncio.Future[T]:
        """Run `work` in the reader thread; return its future. It is queued immediately, awaited or not."""
        started_ms = self._clock.monotonic_ms()
        self.pending += 1

        def read() -> T:
            before = thread_cpu_seconds()
            try:
                return work(*arguments, **named)
            finally:
                self.worked_s = thread_cpu_seconds() - before

        reading = asyncio.get_running_loop().run_in_executor(self._thread, read)
        reading.add_done_callback(lambda _: self._record_duration(started_ms))
        return reading

    def _record_duration(self, started_ms: int) -> None:
        self.pending -= 1
        self.last_read_ms = self._clock.monotonic_ms() - started_ms

    def close(self) -> None:
        """Wait until all requested reads are done, then end the thread."""
        self._thread.shutdown(wait=True)


SIDECARS_AT_ONCE: Final = 16
"""Maximum sidecars read per call, one or two milliseconds each, because other reads wait for the thread."""
MAX_CACHED_TOPICS: Final = 2_000_000
"""Maximum number of topics in memory over all segments, four bytes each; beyond it all are forgotten."""
MAX_CACHED_REQUESTS: Final = 64
"""Maximum number of remembered (segment, topics) requests, some 200 KB each at most."""


class SealedTopicLookup:
    """Topics of the sealed segments of one log. Used in the reader thread only."""

    def __init__(self) -> None:
        self._known: dict[SegmentIndex, array[int] | None] = {}
        """Hashes of each segment's topics, by index (swaps don't replace it); None: the segment has too many
        topics to list."""
        self._cached_topics = 0
        self._ranges: OrderedDict[tuple[SegmentIndex, frozenset[str]], list[IndexedRange]] = OrderedDict()
        """Ranges of recently requested topics in a segment, least recently used first."""

    def next_sequence_of_topics(
        self, topics: Collection[str], segments: Sequence[Segment], sequence: int
    ) -> int:
        """Return the first sequence, from `sequence` on, at which a record of these topics may be.

        The first of `segments` has `sequence`. The search stops at a segment that can't be judged: missing or
        unreadable records are never skipped.
        """
        hashes = [_topic_hash(topic) for topic in topics]
        read = 0
        for segment in segments:
            index = segment.index
            if (
                not segment.sealed
                or index.holes
                or not index.first_sequence <= sequence <= index.last_sequence
            ):
                break
            if index not in self._known:
                if read == SIDECARS_AT_ONCE:
                    break
                read += 1
                self._learn(segment)
            known = self._known[index]
            if known is None:
                break
            if any(_has(known, one) for one in hashes):
                found = self._first_match(segment, topics, sequence)
                if found is not None:
                    return found
            sequence = index.last_sequence + 1
        return sequence

    def _first_match(self, segment: Segment, topics: Collection[str], sequence: int) -> int | None:
        """Return the first sequence in a segment, from `sequence` on, that may have a topic, or None."""
        key = segment.index, frozenset(topics)
        found = self._ranges.get(key)
        if found is None:
            index = _sidecar_of(segment)
            if index is None or index.topic_index is None:
                return sequence
            found = self._ranges[key] = index.ranges_to_read(index.topic_index.topic_mask(topics))
            if len(self._ranges) > MAX_CACHED_REQUESTS:
                self._ranges.popitem(last=False)
        self._ranges.move_to_end(key)
        at = bisect_left(found, sequence, key=_last_of_topics)
        return max(found[at].first, sequence) if at < len(found) else None

    def _learn(self, segment: Segment) -> None:
        """Load the topics of a segment from its sidecar."""
        found = _sidecar_of(segment)
        topics = None if found is None or found.topic_index is None else found.topic_index.topics
        if self._cached_topics > MAX_CACHED_TOPICS:
            self._known.clear()
            self._cached_topics = 0
        self._known[segment.index] = None if topics is None else array("I", sorted(map(_topic_hash, topics)))
        self._cached_topics += 1 + len(topics or ())


def _sidecar_of(segment: Segment) -> SegmentIndex | None:
    """Return the sidecar of a segment, or None if it is missing or belongs to another one."""
    index = segment.index
    found = load_sidecar(index_path(segment.path), index.instance, index.first_sequence)
    # Another segment's sidecar could lack topics that this segment has.
    same = found is not None and (found.end, found.header_crc) == (index.end, index.header_crc)
    return found if same else None


def _last_of_topics(topic_range: IndexedRange) -> int:
    return topic_range.last


def _topic_hash(topic: str) -> int:
    """Return a 32-bit hash of a topic. A collision only causes an unnecessary read."""
    return hash64(topic) & 0xFFFF_FFFF


def _has(known: array[int], one: int) -> bool:
    at = bisect_left(known, one)
    return at < len(known) and known[at] == one


MAX_HINTS = 4_096
"""Remembered positions at which readers stopped: continuing there needs no search."""
_TRIES = 4
"""Number of attempts to read a segment while swaps move it."""


class LogReader:
    """Segments of the log, oldest first, and all reads of them."""

    def __init__(self, instance: str, segments: tuple[Segment, ...], log: UUID | None = None) -> None:
        self._origin = hash64(instance)
        self.identity = log
        self.segments = segments
        self._sources = OpenFileCache(log)
        self._topics = SealedTopicLookup()
        self._hints: dict[tuple[int, int], int] = {}
        """Uncompressed offset at which a reader continues, by (segment's first sequence, next sequence)."""
        self._hole_lock = Lock()
        self._bytes_from: tuple[tuple[Segment, ...], list[int]] = ((), [])
        """Bytes of each segment and all later ones, for this tuple of segments; without the last segment,
        which grows."""
        self._skipped: tuple[tuple[Segment, ...], list[tuple[int, int]]] = ((), [])
        """Skipped sequences before these segments."""

    # Changes, by the journal and its swaps.

    def replace(self, segments: tuple[Segment, ...]) -> None:
        """Replace the tuple of segments, and drop the open files of removed ones."""
        removed_paths = {segment.path for segment in self.segments} - {segment.path for segment in segments}
        self.segments = segments
        for path in removed_paths:
            self._sources.evict(path)

    def close(self) -> None:
        self._sources.clear()

    # Reading.

    def read(self, sequence: int, max_bytes: int, upto: int) -> tuple[int, list[Batch], list[int]]:
        """Read from the batch with `sequence` on as (segment, batches, their offsets); see Journal.read."""
        for _ in range(_TRIES):
            try:
                return self._read(sequence, max_bytes, upto)
            except FileNotFoundError:
                continue  # the segment was moved between lookup and open
            except OSError as error:
                raise journal_error(error, "reading the journal") from error
        raise self._moving(sequence)

    def may_contain_topic(self, topic: str, sequence: int) -> bool:
        """Return whether a record of this topic may follow from `sequence` on; see Journal.may_contain_topic.

        Reads nothing from disk, so every sealed segment counts as possible.
        """
        segments = self.segments
        start = max(bisect_right(segments, sequence, key=_first) - 1, 0)
        return any(
            one.index.last_sequence >= sequence
            and (one.sealed or one.index.may_contain_topic(topic, sequence))
            for one in segments[start:]
        )

    def next_sequence_of_topics(self, topics: Collection[str], sequence: int) -> int:
        """Return the next sequence that may have these topics; see Journal.next_sequence_of_topics."""
        segments = self.segments
        start = max(bisect_right(segments, sequence, key=_first) - 1, 0)
        return self._topics.next_sequence_of_topics(topics, segments[start:], sequence)

    def bytes_pinned_from(self, sequence: int) -> int:
        """Return the bytes of all segments that have this record or later ones. Reads nothing from disk."""
        segments, behind = self._bytes_from
        if segments is not self.segments:
            segments = self.segments
            sizes = [one.nbytes for one in reversed(segments[:-1])]
            self._bytes_from = segments, behind = segments, [*accumulate(sizes, initial=0)][::-1]
        if not segments or segments[-1].index.last_sequence < sequence:
            return 0
        index = max(bisect_right(segments, sequence, key=_first) - 1, 0)
        if segments[index].index.last_sequence < sequence:  # the sequence is in a missing range
            index += 1
        return behind[index] + segments[-1].nbytes

    def _read(self, sequence: int, max_bytes: int, upto: int) -> tuple[int, list[Batch], list[int]]:
        segments = self.segments
        start = max(bisect_right(segments, sequence, key=_first) - 1, 0)
        for segment in segments[start:]:
            if segment.index.last_sequence < sequence:
                continue
            batches, offsets = self._read_segment(segment, sequence, max_bytes, upto)
            if batches:
                return segment.first_sequence, batches, offsets
            if segment.index.last_sequence >= upto:
                break
        return 0, [], []

    def _read_segment(
        self, segment: Segment, sequence: int, max_bytes: int, upto: int
    ) -> tuple[list[Batch], list[int]]:
        """Read a segment from the batch with `sequence` on, skipping missing ranges before it."""
        source, end = self._sources.get(segment), segment.index.end
        offset, before, exact = self._start(segment, sequence)
        while offset < end:
            found = scan_batches(source, offset, end, max_bytes if exact else SEEK_CHUNK)
            if found.problem is not None:
                offset = self._skip_missing(segment, source, offset, end, before, found.problem)
                continue
            number = _first_reaching(found.batches, sequence)
            if number == len(found.batches):
                offset, before = found.stopped_at, found.batches[-1].last_sequence
            elif exact:
                stop = _unbroken(found.batches, number, upto)
                self._remember(segment, found.batches, found.offsets, stop, found.stopped_at)
                return found.batches[number:stop], found.offsets[number:stop]
            else:
                offset, exact = found.offsets[number], True
                before = found.batches[number].first_sequence - 1
        return [], []

    def _start(self, segment: Segment, sequence: int) -> tuple[int, int, bool]:
        """Return (offset, the sequence before it, whether it is the exact position of `sequence`)."""
        hint = self._hints.get((segment.first_sequence, sequence))
        if hint is not None:
            return hint, sequence - 1, True
        offset, first = segment.with_path().find(sequence)
        return offset, first - 1, first == sequence

    def _remember(
        self, segment: Segment, batches: list[Batch], offsets: list[int], stop: int, stopped_at: int
    ) -> None:
        """Store the position after the batches read, as a hint for the next read."""
        if stop == 0:
            return
        following = batches[stop - 1].last_sequence + 1
        if len(self._hints) >= MAX_HINTS:
            self._hints.clear()
        self._hints[segment.first_sequence, following] = offsets[stop] if stop < len(offsets) else stopped_at

    def _skip_missing(
        self, segment: Segment, source: SegmentSource, offset: int, end: int, before: int, reason: str
    ) -> int:
        """Return the offset after unreadable bytes; record the missing range the first time.

        Raises JournalError journal_damaged in a segment that is not sealed: bytes may still be written there.
        """
        index = segment.index
        known = index.missing_range_at(offset)
        if known is not None:
            return offset + known.length
        following = find_next_batch(source, offset, end, self._origin, before)
        if following is not None:
            last = scan_batches(source, following, end, 1).batches[0].first_sequence - 1
        elif segment.sealed:
            following, last = end, index.last_sequence
        else:
            raise damaged_segment_error(segment.path, offset, reason)
        hole = MissingRange(segment.first_sequence, offset, following - offset, before + 1, last, reason)
        with self._hole_lock:
            if index.missing_range_at(offset) is None:
                index.holes = (*index.holes, hole)
        return following

    def read_at(self, position: BatchPosition, length: int) -> Batch:
        """Read the one batch at a position; see Journal.read_at."""
        return self.read_span(position, length)[0][0]

    def read_span(self, position: BatchPosition, length: int) -> tuple[list[Batch], list[int]]:
        """Read the batches in these bytes, as (batches, their offsets); see Journal.read_span."""
        for _ in range(_TRIES):
            segments = self.segments
            number = bisect_right(segments, position.segment, key=_first) - 1
            if number < 0 or segments[number].first_sequence != position.segment:
                raise JournalError(
                    "bookmark_gone",
                    f"The segment that starts with {position.segment} is no longer in the log.",
                    "Subscribe again from a bookmark that is still in the log.",
                    segment=position.segment,
                )
            try:
                return _batches_between(
                    self._sources.get(segments[number]), position.offset, position.offset + length
                )
            except FileNotFoundError:
                continue
            except OSError as error:
                raise journal_error(error, "reading the journal") from error
        raise self._moving(position.segment)

    def sequence_at(self, moment: int) -> int | None:
        """Return the first sequence accepted at or after `moment` (ns UTC); None if there is none yet."""
        for segment in self.segments:
            if segment.index.last_at < moment:
                continue
            sequence = self._start_of_moment(segment, moment)
            while sequence <= segment.index.last_sequence:
                _, batches, _ = self.read(sequence, SEEK_CHUNK, segment.index.last_sequence)
                if not batches:
                    break
                for batch in batches:
                    if batch.accepted_at >= moment:
                        return batch.first_sequence
                sequence = batches[-1].last_sequence + 1
        return None

    def _start_of_moment(self, segment: Segment, moment: int) -> int:
        """Return the sequence in a segment at which the search for a moment starts."""
        try:
            return segment.with_path().find_moment(moment)[1]
        except OSError:
            return segment.first_sequence  # a swap has just moved it: search from its start

    def missing_ranges(self) -> list[MissingRange]:
        """Return the ranges known to be unreadable, oldest first: in segments and between them."""
        segments = self.segments
        found = [hole for segment in segments for hole in segment.index.holes]
        for earlier, later in pairwise(segments):
            first, last = earlier.index.last_sequence + 1, later.index.last_before
            if last >= first:
                reason = later.index.reason_missing_before
                found.append(MissingRange(earlier.first_sequence, earlier.index.end, 0, first, last, reason))
        return sorted(found, key=lambda hole: hole.first_sequence)

    def skipped(self) -> list[tuple[int, int]]:
        """Return the skipped intervals before segments, oldest first: sequences that never name a record."""
        segments, skipped = self._skipped
        if segments is not self.segments:
            segments = self.segments
            indexes = (segment.index for segment in segments)
            skipped = [(one.skipped_from, one.first_sequence - 1) for one in indexes if one.skipped_from]
            self._skipped = segments, skipped
        return skipped

    def _moving(self, sequence: int) -> JournalError:
        """Return the error for a segment that is not found at its path after _TRIES attempts."""
        return JournalError(
            "journal_failed",
            f"The segment with record {sequence} isn't where it should be.",
            "Check that nothing but the broker moves files in the journal's directories.",
            sequence=sequence,
        )


def _batches_between(source: SegmentSource, offset: int, end: int) -> tuple[list[Batch], list[int]]:
    """Read the batches from `offset` to `end`, up to the first damaged one; at least one."""
    batches, offsets = list[Batch](), list[int]()
    while offset < end:
        found = scan_batches(source, offset, end, end - offset)
        if not found.batches:
            if batches:
                break  # a caller that needs a later one reads there, and gets the error
            raise damaged_segment_error(source.file.path, offset, found.problem or "no batch stands there")
        batches += found.batches
        offsets += found.offsets
        offset = found.stopped_at
    return batches, offsets


def _first(segment: Segment) -> int:
    return segment.index.first_sequence


def _first_reaching(batches: list[Batch], sequence: int) -> int:
    """Return the index of the first batch that ends at or after `sequence`."""
    return bisect_right(batches, sequence - 1, key=_last) if batches else 0


def _last(batch: Batch) -> int:
    return batch.header.first_sequence + batch.header.count - 1


def _unbroken(batches: list[Batch], number: int, upto: int) -> int:
    """Return the end index of the gapless run of batches from `number` that ends at `upto` or before."""
    expected = batches[number].header.first_sequence
    for at in range(number, len(batches)):
        header = batches[at].header
        following = header.first_sequence + header.count
        if header.first_sequence != expected or following > upto + 1:
            return at
        expected = following
    return len(batches)
