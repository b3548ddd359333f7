"""The one thread in which the log and spools are read, so that a slow disk never stops the loop.

Where sealed segments have a topic: who wants one, as a queue or a replay does, needn't read all the others.

A sealed segment's sidecar says in which of its stretches its topics are. It is read once, when somebody wants to know, and of
each topic four bytes are kept, by which segments are passed over; and the places of those that were asked for last. So what is said
here is either certain, "it has none of these up to there", or a reason to read.

Reading the log by sequence, position or time, over current, sealed, archived and compressed segments.

No lock is taken: `segments` is an immutable tuple, replaced whole by whoever rolls, swaps or removes.
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
    """Work is done in the order in which it was asked for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "reader")
        self.took_ms = 0
        """How long the last read took, with its turn in the queue."""
        self.worked_s = 0.0
        """The CPU time of the last read alone, in seconds."""
        self.pending = 0
        """Reads that are asked for and not done."""

    def run(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> asyncio.Future[T]:
        """Read where it doesn't stop the loop. It is queued at once, awaited or not."""
        begun = self._clock.monotonic_ms()
        self.pending += 1

        def read() -> T:
            before = thread_cpu_seconds()
            try:
                return work(*arguments, **named)
            finally:
                self.worked_s = thread_cpu_seconds() - before

        reading = asyncio.get_running_loop().run_in_executor(self._thread, read)
        reading.add_done_callback(lambda _: self._took(begun))
        return reading

    def _took(self, begun: int) -> None:
        self.pending -= 1
        self.took_ms = self._clock.monotonic_ms() - begun

    def close(self) -> None:
        """Finish what was asked for."""
        self._thread.shutdown(wait=True)


SIDECARS_AT_ONCE: Final = 16
"""Read in one go, a millisecond or two each: others want the reader thread too."""
MAX_KEPT: Final = 2_000_000
"""Topics of all segments together, four bytes each; then it begins anew."""
MAX_PLACES: Final = 64
"""Segments and choices of topics whose stretches are remembered, some 200 KB each at most."""


class SealedTopicLookup:
    """Of the segments of one log. Belongs to the reader thread."""

    def __init__(self) -> None:
        self._known: dict[SegmentIndex, array[int] | None] = {}
        """By the index of their segments, which swaps leave as it is; None: a segment has too many topics to be named."""
        self._kept = 0
        self._places: OrderedDict[tuple[SegmentIndex, frozenset[str]], list[IndexedRange]] = OrderedDict()
        """Those asked for longest ago first."""

    def next_sequence_of_topics(
        self, topics: Collection[str], segments: Sequence[Segment], sequence: int
    ) -> int:
        """From `sequence`, which the first of the segments has, the first place where a record of these topics may stand.

        What can't be read, or isn't there, is for whoever reads: it is never passed over.
        """
        wanted = [_short(topic) for topic in topics]
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
            if any(_has(known, one) for one in wanted):
                place = self._place(segment, topics, sequence)
                if place is not None:
                    return place
            sequence = index.last_sequence + 1
        return sequence

    def _place(self, segment: Segment, topics: Collection[str], sequence: int) -> int | None:
        """From `sequence` on, the first place in the segment where one of these topics may be; None: nowhere in it."""
        key = segment.index, frozenset(topics)
        found = self._places.get(key)
        if found is None:
            whole = _sidecar_of(segment)
            if whole is None or whole.topic_index is None:
                return sequence
            found = self._places[key] = whole.ranges_to_read(whole.topic_index.topic_mask(topics))
            if len(self._places) > MAX_PLACES:
                self._places.popitem(last=False)
        self._places.move_to_end(key)
        at = bisect_left(found, sequence, key=_last_of_topics)
        return max(found[at].first, sequence) if at < len(found) else None

    def _learn(self, segment: Segment) -> None:
        found = _sidecar_of(segment)
        topics = None if found is None or found.topic_index is None else found.topic_index.topics
        if self._kept > MAX_KEPT:
            self._known.clear()
            self._kept = 0
        self._known[segment.index] = None if topics is None else array("I", sorted(map(_short, topics)))
        self._kept += 1 + len(topics or ())


def _sidecar_of(segment: Segment) -> SegmentIndex | None:
    index = segment.index
    found = load_sidecar(index_path(segment.path), index.instance, index.first_sequence)
    # Another segment's would say that topics aren't here which are.
    same = found is not None and (found.end, found.header_crc) == (index.end, index.header_crc)
    return found if same else None


def _last_of_topics(stretch: IndexedRange) -> int:
    return stretch.last


def _short(topic: str) -> int:
    return hash64(topic) & 0xFFFF_FFFF


def _has(known: array[int], one: int) -> bool:
    at = bisect_left(known, one)
    return at < len(known) and known[at] == one


MAX_HINTS = 4_096
"""Places where readers stopped, remembered so that going on is one read without a search."""
_TRIES = 4


class LogReader:
    """The segments, oldest first, and everything that reads them."""

    def __init__(self, instance: str, segments: tuple[Segment, ...], log: UUID | None = None) -> None:
        self._origin = hash64(instance)
        self.identity = log
        self.segments = segments
        self._sources = OpenFileCache(log)
        self._topics = SealedTopicLookup()
        self._hints: dict[tuple[int, int], int] = {}
        self._hole_lock = Lock()
        self._behind: tuple[tuple[Segment, ...], list[int]] = ((), [])
        """Of these segments, the bytes of each and of all behind it, without the last: that one grows."""
        self._skipped: tuple[tuple[Segment, ...], list[tuple[int, int]]] = ((), [])
        """The numbers that were skipped before these segments."""

    # Changes, by the journal and its swaps.

    def replace(self, segments: tuple[Segment, ...]) -> None:
        """Put another tuple of segments in place."""
        gone = {segment.path for segment in self.segments} - {segment.path for segment in segments}
        self.segments = segments
        for path in gone:
            self._sources.evict(path)

    def close(self) -> None:
        self._sources.clear()

    # Reading.

    def read(self, sequence: int, max_bytes: int, upto: int) -> tuple[int, list[Batch], list[int]]:
        """(segment, batches, their offsets) from the batch with `sequence` on; see Journal.read."""
        for _ in range(_TRIES):
            try:
                return self._read(sequence, max_bytes, upto)
            except FileNotFoundError:
                continue  # the segment was moved between looking it up and opening it
            except OSError as error:
                raise journal_error(error, "reading the journal") from error
        raise self._moving(sequence)

    def may_contain_topic(self, topic: str, sequence: int) -> bool:
        """Whether there may be a record of that topic from there on. Without reading, so of sealed segments it isn't known."""
        segments = self.segments
        start = max(bisect_right(segments, sequence, key=_first) - 1, 0)
        return any(
            one.index.last_sequence >= sequence
            and (one.sealed or one.index.may_contain_topic(topic, sequence))
            for one in segments[start:]
        )

    def next_sequence_of_topics(self, topics: Collection[str], sequence: int) -> int:
        """See Journal.next_of."""
        segments = self.segments
        start = max(bisect_right(segments, sequence, key=_first) - 1, 0)
        return self._topics.next_sequence_of_topics(topics, segments[start:], sequence)

    def bytes_held_from(self, sequence: int) -> int:
        """The bytes of all segments that have this record or later ones. Without reading, however many there are."""
        segments, behind = self._behind
        if segments is not self.segments:
            segments = self.segments
            sizes = [one.nbytes for one in reversed(segments[:-1])]
            self._behind = segments, behind = segments, [*accumulate(sizes, initial=0)][::-1]
        if not segments or segments[-1].index.last_sequence < sequence:
            return 0
        place = max(bisect_right(segments, sequence, key=_first) - 1, 0)
        if segments[place].index.last_sequence < sequence:  # it is in a hole
            place += 1
        return behind[place] + segments[-1].nbytes

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
        source, end = self._sources.get(segment), segment.index.end
        offset, before, exact = self._start(segment, sequence)
        while offset < end:
            found = scan_batches(source, offset, end, max_bytes if exact else SEEK_CHUNK)
            if found.problem is not None:
                offset = self._behind_hole(segment, source, offset, end, before, found.problem)
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
        """(offset, the sequence before it, whether it is the very place)."""
        hint = self._hints.get((segment.first_sequence, sequence))
        if hint is not None:
            return hint, sequence - 1, True
        offset, first = segment.with_path().find(sequence)
        return offset, first - 1, first == sequence

    def _remember(
        self, segment: Segment, batches: list[Batch], offsets: list[int], stop: int, stopped_at: int
    ) -> None:
        if stop == 0:
            return
        following = batches[stop - 1].last_sequence + 1
        if len(self._hints) >= MAX_HINTS:
            self._hints.clear()
        self._hints[segment.first_sequence, following] = offsets[stop] if stop < len(offsets) else stopped_at

    def _behind_hole(
        self, segment: Segment, source: SegmentSource, offset: int, end: int, before: int, why: str
    ) -> int:
        """Where reading goes on behind unreadable bytes; the hole is noted the first time it is met."""
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
            raise damaged_segment_error(segment.path, offset, why)
        hole = MissingRange(segment.first_sequence, offset, following - offset, before + 1, last, why)
        with self._hole_lock:
            if index.missing_range_at(offset) is None:
                index.holes = (*index.holes, hole)
        return following

    def read_at(self, position: BatchPosition, length: int) -> Batch:
        """The one batch at a position; see Journal.read_at."""
        return self.read_span(position, length)[0][0]

    def read_span(self, position: BatchPosition, length: int) -> tuple[list[Batch], list[int]]:
        """(batches, their offsets) of these bytes; see Journal.read_span."""
        for _ in range(_TRIES):
            segments = self.segments
            number = bisect_right(segments, position.segment, key=_first) - 1
            if number < 0 or segments[number].first_sequence != position.segment:
                raise JournalError(
                    "bookmark_gone",
                    f"The segment that starts with {position.segment} isn't in the log any more.",
                    "Subscribe again from a bookmark the log still holds.",
                    segment=position.segment,
                )
            try:
                return _all_between(
                    self._sources.get(segments[number]), position.offset, position.offset + length
                )
            except FileNotFoundError:
                continue
            except OSError as error:
                raise journal_error(error, "reading the journal") from error
        raise self._moving(position.segment)

    def sequence_at(self, moment: int) -> int | None:
        """The first record accepted at or after `moment`; None when there is none yet."""
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
        try:
            return segment.with_path().find_moment(moment)[1]
        except OSError:
            return segment.first_sequence  # a swap has just moved it: walk from its start

    def missing_ranges(self) -> list[MissingRange]:
        """Everything known to be unreadable, oldest first: in segments and between them."""
        segments = self.segments
        found = [hole for segment in segments for hole in segment.index.holes]
        for earlier, later in pairwise(segments):
            first, last = earlier.index.last_sequence + 1, later.index.last_before
            if last >= first:
                why = "the records aren't there"
                found.append(MissingRange(earlier.first_sequence, earlier.index.end, 0, first, last, why))
        return sorted(found, key=lambda hole: hole.first_sequence)

    def skipped(self) -> list[tuple[int, int]]:
        """Return the intervals of numbers before segments that name no record and never will, oldest
        first."""
        segments, skipped = self._skipped
        if segments is not self.segments:
            segments = self.segments
            indexes = (segment.index for segment in segments)
            skipped = [(one.skipped_from, one.first_sequence - 1) for one in indexes if one.skipped_from]
            self._skipped = segments, skipped
        return skipped

    def _moving(self, sequence: int) -> JournalError:
        return JournalError(
            "journal_failed",
            f"The segment with record {sequence} isn't where it should be.",
            "Check that nothing but the broker moves files in the journal's directories.",
            sequence=sequence,
        )


def _all_between(source: SegmentSource, offset: int, end: int) -> tuple[list[Batch], list[int]]:
    batches, offsets = list[Batch](), list[int]()
    while offset < end:
        found = scan_batches(source, offset, end, end - offset)
        if not found.batches:
            if batches:
                break  # who needs one behind asks for it, and is told
            raise damaged_segment_error(source.file.path, offset, found.problem or "no batch stands there")
        batches += found.batches
        offsets += found.offsets
        offset = found.stopped_at
    return batches, offsets


def _first(segment: Segment) -> int:
    return segment.index.first_sequence


def _first_reaching(batches: list[Batch], sequence: int) -> int:
    """The number of the first batch that ends at or behind `sequence`."""
    return bisect_right(batches, sequence - 1, key=_last) if batches else 0


def _last(batch: Batch) -> int:
    return batch.header.first_sequence + batch.header.count - 1


def _unbroken(batches: list[Batch], number: int, upto: int) -> int:
    """How far the batches from `number` follow one another without a hole and stay within `upto`."""
    expected = batches[number].header.first_sequence
    for at in range(number, len(batches)):
        header = batches[at].header
        following = header.first_sequence + header.count
        if header.first_sequence != expected or following > upto + 1:
            return at
        expected = following
    return len(batches)
