"""Reading the log by sequence, position or time, over current, sealed, archived and compressed segments.

No lock is taken: `segments` is an immutable tuple, replaced whole by whoever rolls, swaps or removes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from itertools import accumulate, pairwise
from threading import Lock
from uuid import UUID

from broker_core.batch import Batch, hash64
from broker_core.errors import JournalError
from broker_core.journal.files import journal_error
from broker_core.journal.held import Segment, Sources
from broker_core.journal.index import Hole
from broker_core.journal.reader import SEEK_CHUNK, Source, next_batch, walk
from broker_core.journal.sealed_topics import SealedTopics
from broker_core.journal.segment import Position, damaged

MAX_HINTS = 4_096
"""Places where readers stopped, remembered so that going on is one read without a search."""
_TRIES = 4


class LogReader:
    """The segments, oldest first, and everything that reads them."""

    def __init__(self, instance: str, segments: tuple[Segment, ...], log: UUID | None = None) -> None:
        self._origin = hash64(instance)
        self.identity = log
        self.segments = segments
        self._sources = Sources(log)
        self._topics = SealedTopics()
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
            self._sources.forget(path)

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

    def may_hold(self, topic: str, sequence: int) -> bool:
        """Whether there may be a record of that topic from there on. Without reading, so of sealed segments it isn't known."""
        segments = self.segments
        start = max(bisect_right(segments, sequence, key=_first) - 1, 0)
        return any(
            one.index.last_sequence >= sequence and (one.sealed or one.index.may_hold(topic, sequence))
            for one in segments[start:]
        )

    def next_of(self, topics: Collection[str], sequence: int) -> int:
        """See Journal.next_of."""
        segments = self.segments
        start = max(bisect_right(segments, sequence, key=_first) - 1, 0)
        return self._topics.next_of(topics, segments[start:], sequence)

    def bytes_from(self, sequence: int) -> int:
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
            found = walk(source, offset, end, max_bytes if exact else SEEK_CHUNK)
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
        offset, first = segment.located().find(sequence)
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
        self, segment: Segment, source: Source, offset: int, end: int, before: int, why: str
    ) -> int:
        """Where reading goes on behind unreadable bytes; the hole is noted the first time it is met."""
        index = segment.index
        known = index.hole_at(offset)
        if known is not None:
            return offset + known.length
        following = next_batch(source, offset, end, self._origin, before)
        if following is not None:
            last = walk(source, following, end, 1).batches[0].first_sequence - 1
        elif segment.sealed:
            following, last = end, index.last_sequence
        else:
            raise damaged(segment.path, offset, why)
        hole = Hole(segment.first_sequence, offset, following - offset, before + 1, last, why)
        with self._hole_lock:
            if index.hole_at(offset) is None:
                index.holes = (*index.holes, hole)
        return following

    def read_at(self, position: Position, length: int) -> Batch:
        """The one batch at a position; see Journal.read_at."""
        return self.read_span(position, length)[0][0]

    def read_span(self, position: Position, length: int) -> tuple[list[Batch], list[int]]:
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
            return segment.located().find_moment(moment)[1]
        except OSError:
            return segment.first_sequence  # a swap has just moved it: walk from its start

    def holes(self) -> list[Hole]:
        """Everything known to be unreadable, oldest first: in segments and between them."""
        segments = self.segments
        found = [hole for segment in segments for hole in segment.index.holes]
        for earlier, later in pairwise(segments):
            first, last = earlier.index.last_sequence + 1, later.index.last_before
            if last >= first:
                why = "the records aren't there"
                found.append(Hole(earlier.first_sequence, earlier.index.end, 0, first, last, why))
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


def _all_between(source: Source, offset: int, end: int) -> tuple[list[Batch], list[int]]:
    batches, offsets = list[Batch](), list[int]()
    while offset < end:
        found = walk(source, offset, end, end - offset)
        if not found.batches:
            if batches:
                break  # who needs one behind asks for it, and is told
            raise damaged(source.file.path, offset, found.problem or "no batch stands there")
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
