"""What is known of one segment's content: a sparse index by sequence and time, its topics, its holes.

Kept in memory while a segment is written, and beside it as `.index.gz` when it is sealed (index_sidecar.py has the bytes).
A sidecar saves a scan at opening; it is never trusted over the segment: a reader checks every batch it gets to, and
a sidecar that is missing or doesn't fit is rebuilt.

One entry per about 64 KiB: the batch that starts at `offset` starts with `sequence`, and the entry's stretch ends
where the next one's starts. `at` is the greatest accepted_at up to and with that batch, so it never falls, even when
a clock was set back. Topic lists are None when there are too many to be worth naming: then any may be there.

Of a sealed segment only the summary has to be in memory; the entries are read when somebody reads the segment
(held.Segment.located) and let go of when its file is closed, so that a log of thousands of segments costs little.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np

from broker_core.batch import Batch
from broker_core.bookmark import MAX_SEQUENCE
from broker_core.journal.segment import HEADER_SIZE
from broker_core.journal.topic_index import MAX_PAIRS, MAX_TOPICS, Mask, TopicIndex

ENTRY_BYTES = 64 * 1024
MAX_STRETCHES = 64
"""That are asked for a topic before the log itself is."""


class MissingRange(NamedTuple):
    """Records that should be in the log and can't be read: an exact interval, reported and never silently skipped.

    `length` bytes at `offset` of `segment` are unreadable; 0 when the records aren't there at all.
    """

    segment: int
    offset: int
    length: int
    first_sequence: int
    last_sequence: int
    why: str


class IndexedRange(NamedTuple):
    """Records `first` to `last`, and the bytes that they are in, up to `end`."""

    first: int
    last: int
    offset: int
    end: int


class IndexEntries:
    """The stretches of a segment: columns of sequence, offset and time, and their topics."""

    __slots__ = (
        "ats",
        "numbers",
        "offsets",
        "pairs",
        "places_only",
        "sealed",
        "sequences",
        "topics",
        "unlisted",
    )

    def __init__(self, *, places_only: bool = False, sealed: TopicIndex | None = None) -> None:
        self.places_only = places_only
        """Whether only the places were read: no topics, and perhaps not every stretch."""
        self.sequences = array("Q")
        self.offsets = array("Q")
        self.ats = array("q")
        self.sealed = sealed
        """The topics, of a segment that isn't written any more; else they are in what follows."""
        self.topics: list[array[int] | None] = []
        """Of each stretch that is finished; a number counts in `numbers`. None: there were too many."""
        self.numbers: dict[str, int] = {}
        self.pairs = 0
        self.unlisted = False
        """Whether a stretch's are None."""

    def number(self, topics: set[str]) -> array[int] | None:
        """The numbers of a stretch's topics; None when they are too many."""
        numbers = self.numbers
        if self.pairs + len(topics) > MAX_PAIRS or len(numbers) + len(topics) > MAX_TOPICS:
            return None
        return array("I", [numbers.setdefault(topic, len(numbers)) for topic in topics])

    def finish(self, topics: set[str]) -> None:
        """Take note of a stretch's topics."""
        found = self.number(topics)
        self.pairs += len(found or ())
        self.unlisted = self.unlisted or found is None
        self.topics.append(found)


class SegmentIndex:
    """One segment's content, added to batch by batch. Without its entries, it finds every place by walking."""

    __slots__ = (
        "_entries",
        "_entry_topics",
        "_next_entry",
        "end",
        "epoch",
        "first_at",
        "first_sequence",
        "header_crc",
        "holes",
        "instance",
        "last_at",
        "last_sequence",
        "records",
        "skipped_from",
    )

    def __init__(self, instance: str, first_sequence: int, epoch: int) -> None:
        self.instance = instance
        self.first_sequence = first_sequence
        self.epoch = epoch
        self.header_crc = 0
        """Of the segment's header, by which a sidecar knows its segment; 0: not known."""
        self.end = HEADER_SIZE
        self.records = 0
        self.last_sequence = first_sequence - 1
        self.first_at = 0
        self.last_at = 0
        self.holes: tuple[MissingRange, ...] = ()
        self.skipped_from = 0
        """First of the numbers right before the segment that name no record, by its header; 0: none."""
        self._next_entry = 0
        self._entries: IndexEntries | None = IndexEntries()
        self._entry_topics: set[str] = set()

    @property
    def last_before(self) -> int:
        """Last number before the segment that names a record, as far as its header tells."""
        return (self.skipped_from or self.first_sequence) - 1

    def add(self, offset: int, batch: Batch) -> None:
        """Take note of the batch written at `offset`. The hottest call of the journal after the write itself."""
        header = batch.header
        if header.accepted_at > self.last_at:
            self.last_at = header.accepted_at
        if offset >= self._next_entry:
            self._start_entry(offset, header.first_sequence)
        self._entry_topics.update(batch.topics)
        self.records += header.count
        self.last_sequence = header.first_sequence + header.count - 1
        self.epoch = header.epoch
        self.end = offset + batch.nbytes

    def _start_entry(self, offset: int, sequence: int) -> None:
        entries = self._entries
        assert entries is not None, "a segment that is written keeps its entries"
        if entries.sequences:
            entries.finish(self._entry_topics)
        else:
            self.first_at = self.last_at
        self._entry_topics = set()
        # The sequence last: readers in other threads bisect the sequences and then take the offset of the same row.
        entries.ats.append(self.last_at)
        entries.offsets.append(offset)
        entries.sequences.append(sequence)
        self._next_entry = offset + ENTRY_BYTES

    def find(self, sequence: int) -> tuple[int, int]:
        """(offset, its sequence) of an indexed batch at or before the one with `sequence`."""
        entries = self._entries
        return self._entry(entries, bisect_right(entries.sequences, sequence) - 1 if entries else -1)

    def find_moment(self, at: int) -> tuple[int, int]:
        """(offset, its sequence) of an indexed batch at or before the first accepted at or after `at`.

        Both round down, and a reader walks on from there: `find` to a batch that may hold the sequence itself,
        hence bisect_right; here an entry that reaches `at` may not be the first that does, hence bisect_left.
        """
        entries = self._entries
        number = bisect_left(entries.ats, at, hi=len(entries.sequences)) - 1 if entries else -1
        return self._entry(entries, number)

    def _entry(self, entries: IndexEntries | None, number: int) -> tuple[int, int]:
        if entries is None or number < 0:
            return HEADER_SIZE, self.first_sequence
        return entries.offsets[number], entries.sequences[number]

    def missing_range_at(self, offset: int) -> MissingRange | None:
        """The known hole whose bytes start at `offset`."""
        return next((hole for hole in self.holes if hole.offset == offset and hole.length), None)

    def may_contain_topic(self, topic: str, sequence: int) -> bool:
        """Whether a record of that topic may stand at that sequence or behind it, in a segment that is being written. Looks at
        the newest stretches alone: what begins further back is to be read."""
        # In this order: the writer names a stretch's topics before it begins the next.
        last, entries = self._entry_topics, self._entries
        known = entries is not None and entries.sealed is None and not entries.places_only
        if entries is None or not known or self.holes or topic in last:
            return True
        number = entries.numbers.get(topic)
        if number is None:
            return entries.unlisted
        first = max(bisect_right(entries.sequences, sequence) - 1, 0)
        if len(entries.topics) - first > MAX_STRETCHES:
            return True
        return any(one is None or number in one for one in entries.topics[first:])

    @property
    def topic_index(self) -> TopicIndex | None:
        """Which stretches hold which topics; None when that isn't known. Of a segment that is still written it is made anew."""
        entries = self._entries
        if entries is None or entries.places_only:
            return None
        if entries.sealed is not None:
            return entries.sealed
        finished = list(entries.topics)
        if len(finished) < len(entries.sequences):
            finished.append(entries.number(self._entry_topics))
        return TopicIndex.build(entries.numbers, finished)

    def entries(self) -> list[tuple[int, int, int]]:
        """(sequence, offset, at) of each stretch."""
        entries = self._entries
        if entries is None or entries.places_only:
            return []
        return list(zip(entries.sequences, entries.offsets, entries.ats, strict=True))

    def ranges_to_read(
        self, wanted: Mask | None, first: int = 0, last: int = MAX_SEQUENCE, since: int = 0, until: int = MAX_SEQUENCE
    ) -> list[IndexedRange]:  # fmt: skip
        """What a reader of a sealed segment has to read: the wanted stretches with something of these sequences and times, both
        bounds included; those that follow one another are one. `wanted` is None, for all, where topics aren't known."""
        entries = self._entries
        if entries is None or entries.places_only or not entries.sequences:
            return [IndexedRange(self.first_sequence, self.last_sequence, HEADER_SIZE, self.end)]
        sequences, offsets = np.array(entries.sequences), np.array(entries.offsets)
        ats = np.array(entries.ats)
        chosen = (sequences <= last) & (ats <= until)
        chosen[:-1] &= (sequences[1:] > first) & (ats[1:] >= since)
        chosen[-1] &= self.last_sequence >= first and self.last_at >= since
        if wanted is not None:
            chosen &= wanted
        edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
        begins, ends = edges[::2], edges[1::2]
        return [
            IndexedRange(begin, following - 1, offset, end)
            for begin, following, offset, end in zip(
                sequences[begins].tolist(),
                np.append(sequences, np.uint64(self.last_sequence + 1))[ends].tolist(),
                offsets[begins].tolist(),
                np.append(offsets, np.uint64(self.end))[ends].tolist(),
                strict=True,
            )
        ]

    def sample_positions(self, limit: int) -> tuple[array[int], array[int], array[int]]:
        """Sequences, offsets and times of at most `limit` stretches, evenly chosen."""
        entries = self._entries or IndexEntries()
        step = -(-len(entries.sequences) // limit) or 1
        return entries.sequences[::step], entries.offsets[::step], entries.ats[::step]

    # Entries come and go; who reads meanwhile keeps those it has.

    @property
    def has_entries(self) -> bool:
        """Whether places are found without walking."""
        return self._entries is not None

    @property
    def is_complete(self) -> bool:
        """Whether every entry is here with its topics."""
        return self._entries is not None and not self._entries.places_only

    def set_entries(self, entries: IndexEntries | None) -> None:
        """Take the entries of the same segment, or let go of them."""
        self._entries = entries

    def take_entries(self, other: SegmentIndex) -> None:
        """Take the entries that another index of the same segment has."""
        self._entries, self._entry_topics = other._entries, other._entry_topics
