"""Index of one segment: sparse positions by sequence and time, its topics, its missing ranges.

It is in memory while a segment is written, and in `.index.gz` when it is sealed (format: index_sidecar.py). A
sidecar saves a scan at opening and is never trusted over the segment: a reader checks every batch, and a
sidecar that is missing or wrong is rebuilt.

There is one entry per about 64 KiB: the batch at `offset` starts with `sequence`, and the entry's range ends
where the next one's starts. `at` is the greatest accepted_at up to and including that batch, so it never
decreases, even when a clock was set back. A topic list is None when the range has too many: then it may have
any topic.

Only the summary of a sealed segment must be in memory. The entries are loaded when a reader needs them
(`open_segments.Segment.with_path`) and dropped when its file is closed, so that a log of thousands of
segments needs little memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np

from broker_core.batch import Batch
from broker_core.bookmark import MAX_SEQUENCE
from broker_core.journal.segment import HEADER_SIZE, SegmentHeader
from broker_core.journal.topic_index import MAX_PAIRS, MAX_TOPICS, Mask, TopicIndex

ENTRY_BYTES = 64 * 1024
"""Approximate bytes of a segment per index entry."""
MAX_CHECKED_RANGES = 64
"""Maximum number of ranges that `may_contain_topic` checks; beyond it the answer is True."""
MISSING_RECORDS = "the records aren't there"
"""Reason of a missing range without bytes."""
UNKNOWN_RECORDS = (
    "it isn't known whether records ever had these numbers: the segment header that said so was damaged"
)
"""Reason of a missing range that may consist of skipped sequences."""


class MissingRange(NamedTuple):
    """Records that should be in the log and can't be read: an exact interval, always reported.

    `length` bytes at `offset` of `segment` are unreadable; 0 when the records aren't there at all.
    """

    segment: int
    offset: int
    length: int
    first_sequence: int
    last_sequence: int
    why: str


class IndexedRange(NamedTuple):
    """Records `first` to `last`, and their bytes from `offset` to `end`."""

    first: int
    last: int
    offset: int
    end: int


class IndexEntries:
    """Entries of a segment: columns of sequence, offset and time per range, and the ranges' topics."""

    __slots__ = (
        "ats",
        "numbers",
        "offsets",
        "pairs",
        "positions_only",
        "sealed",
        "sequences",
        "topics",
        "unlisted",
    )

    def __init__(self, *, positions_only: bool = False, sealed: TopicIndex | None = None) -> None:
        self.positions_only = positions_only
        """Whether only positions were loaded: no topics, and perhaps not every range."""
        self.sequences = array("Q")
        self.offsets = array("Q")
        self.ats = array("q")
        self.sealed = sealed
        """Topics of a sealed segment; None while it is written, then the following attributes have them."""
        self.topics: list[array[int] | None] = []
        """Topics of each finished range, as values of `numbers`; None: there were too many."""
        self.numbers: dict[str, int] = {}
        """Number of each topic of the segment."""
        self.pairs = 0
        """Number of (topic, range) pairs in `topics`."""
        self.unlisted = False
        """Whether a range has None as its topics."""

    def number(self, topics: set[str]) -> array[int] | None:
        """Return the numbers of a range's topics, adding new ones; None when there are too many."""
        numbers = self.numbers
        if self.pairs + len(topics) > MAX_PAIRS or len(numbers) + len(topics) > MAX_TOPICS:
            return None
        return array("I", [numbers.setdefault(topic, len(numbers)) for topic in topics])

    def finish(self, topics: set[str]) -> None:
        """Store the topics of a finished range."""
        found = self.number(topics)
        self.pairs += len(found or ())
        self.unlisted = self.unlisted or found is None
        self.topics.append(found)


class SegmentIndex:
    """Index of one segment, extended batch by batch.

    Without its entries every search starts at the beginning.
    """

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
        "skips_unknown",
    )

    def __init__(self, instance: str, first_sequence: int, epoch: int) -> None:
        self.instance = instance
        self.first_sequence = first_sequence
        self.epoch = epoch
        self.header_crc = 0
        """Checksum of the segment's header, which connects a sidecar with its segment; 0: unknown."""
        self.end = HEADER_SIZE
        self.records = 0
        self.last_sequence = first_sequence - 1
        self.first_at = 0
        self.last_at = 0
        self.holes: tuple[MissingRange, ...] = ()
        self.skipped_from = 0
        """First of the skipped sequences right before the segment, from its header; 0: none."""
        self.skips_unknown = False
        """Whether missing sequences right before the segment may have been skipped, from its header."""
        self._next_entry = 0
        self._entries: IndexEntries | None = IndexEntries()
        self._entry_topics: set[str] = set()

    @property
    def last_before(self) -> int:
        """Newest sequence before the segment that names a record, by its header."""
        return (self.skipped_from or self.first_sequence) - 1

    @property
    def reason_missing_before(self) -> str:
        """Reason for a missing range right before the segment."""
        return UNKNOWN_RECORDS if self.skips_unknown else MISSING_RECORDS

    def set_header(self, header: SegmentHeader) -> None:
        """Set what the index has of its segment's header, except the epoch, which the batches raise."""
        self.header_crc = header.crc
        self.skipped_from, self.skips_unknown = header.skipped_from, header.skips_unknown

    def add(self, offset: int, batch: Batch) -> None:
        """Add the batch written at `offset`. The most frequent call of the journal after the write itself."""
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
        """Finish the current range and start the next one."""
        entries = self._entries
        assert entries is not None, "a segment that is written keeps its entries"
        if entries.sequences:
            entries.finish(self._entry_topics)
        else:
            self.first_at = self.last_at
        self._entry_topics = set()
        # Append the sequence last: readers in other threads bisect the sequences, then read the offset of the
        # same row.
        entries.ats.append(self.last_at)
        entries.offsets.append(offset)
        entries.sequences.append(sequence)
        self._next_entry = offset + ENTRY_BYTES

    def find(self, sequence: int) -> tuple[int, int]:
        """Return (offset, sequence) of an indexed batch at or before the one with `sequence`."""
        entries = self._entries
        return self._entry(entries, bisect_right(entries.sequences, sequence) - 1 if entries else -1)

    def find_moment(self, at: int) -> tuple[int, int]:
        """Return (offset, sequence) of an indexed batch at or before the first one accepted at or after `at`.

        `find` and this both round down, and the reader continues from there. `find` may return the batch with
        the sequence itself, hence bisect_right. Here an entry that reaches `at` may not be the first one,
        hence bisect_left.
        """
        entries = self._entries
        number = bisect_left(entries.ats, at, hi=len(entries.sequences)) - 1 if entries else -1
        return self._entry(entries, number)

    def _entry(self, entries: IndexEntries | None, number: int) -> tuple[int, int]:
        if entries is None or number < 0:
            return HEADER_SIZE, self.first_sequence
        return entries.offsets[number], entries.sequences[number]

    def missing_range_at(self, offset: int) -> MissingRange | None:
        """Return the known missing range whose bytes start at `offset`, or None."""
        return next((hole for hole in self.holes if hole.offset == offset and hole.length), None)

    def may_contain_topic(self, topic: str, sequence: int) -> bool:
        """Return whether a segment being written may have a record of this topic at `sequence` or later.

        Checks the newest MAX_STRETCHES ranges only; the answer for an older start is True.
        """
        # This order matters: the writer stores a range's topics before it begins the next one.
        last, entries = self._entry_topics, self._entries
        known = entries is not None and entries.sealed is None and not entries.positions_only
        if entries is None or not known or self.holes or topic in last:
            return True
        number = entries.numbers.get(topic)
        if number is None:
            return entries.unlisted
        first = max(bisect_right(entries.sequences, sequence) - 1, 0)
        if len(entries.topics) - first > MAX_CHECKED_RANGES:
            return True
        return any(one is None or number in one for one in entries.topics[first:])

    @property
    def topic_index(self) -> TopicIndex | None:
        """Topics by range; None when unknown. Built at each call while the segment is written."""
        entries = self._entries
        if entries is None or entries.positions_only:
            return None
        if entries.sealed is not None:
            return entries.sealed
        finished = list(entries.topics)
        if len(finished) < len(entries.sequences):
            finished.append(entries.number(self._entry_topics))
        return TopicIndex.build(entries.numbers, finished)

    def entries(self) -> list[tuple[int, int, int]]:
        """Return (sequence, offset, at) of each range."""
        entries = self._entries
        if entries is None or entries.positions_only:
            return []
        return list(zip(entries.sequences, entries.offsets, entries.ats, strict=True))

    def ranges_to_read(
        self,
        selection: Mask | None,
        first: int = 0,
        last: int = MAX_SEQUENCE,
        since: int = 0,
        until: int = MAX_SEQUENCE,
    ) -> list[IndexedRange]:
        """Return the ranges of a sealed segment that a reader has to read, adjacent ones merged.

        Args:
            wanted: Selection of ranges by topic; None for all, where topics are unknown.
            first: First sequence, inclusive.
            last: Last sequence, inclusive.
            since: Earliest acceptance time, ns UTC, inclusive.
            until: Latest acceptance time, ns UTC, inclusive.
        """
        entries = self._entries
        if entries is None or entries.positions_only or not entries.sequences:
            return [IndexedRange(self.first_sequence, self.last_sequence, HEADER_SIZE, self.end)]
        sequences, offsets = np.array(entries.sequences), np.array(entries.offsets)
        ats = np.array(entries.ats)
        chosen = (sequences <= last) & (ats <= until)
        chosen[:-1] &= (sequences[1:] > first) & (ats[1:] >= since)
        chosen[-1] &= self.last_sequence >= first and self.last_at >= since
        if selection is not None:
            chosen &= selection
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
        """Return the sequences, offsets and times of at most `limit` evenly spaced ranges."""
        entries = self._entries or IndexEntries()
        step = -(-len(entries.sequences) // limit) or 1
        return entries.sequences[::step], entries.offsets[::step], entries.ats[::step]

    # Entries may be loaded or dropped at any time; a reader keeps a reference to the ones it uses.

    @property
    def has_entries(self) -> bool:
        """Whether positions can be found without a scan from the start."""
        return self._entries is not None

    @property
    def is_complete(self) -> bool:
        """Whether every entry is loaded, with its topics."""
        return self._entries is not None and not self._entries.positions_only

    def set_entries(self, entries: IndexEntries | None) -> None:
        """Set the entries of the same segment, or drop them with None."""
        self._entries = entries

    def copy_entries(self, source: SegmentIndex) -> None:
        """Copy the entries from another index of the same segment."""
        self._entries, self._entry_topics = source._entries, source._entry_topics
