"""What is known of one segment's content: a sparse index by sequence and time, its topics, its holes.

Kept in memory while a segment is written, and beside it as `.index.gz` when it is sealed (sidecar.py has the bytes).
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

from broker_core.batch import Batch
from broker_core.journal.segment import HEADER_SIZE

ENTRY_BYTES = 64 * 1024
MAX_ENTRY_TOPICS = 64
MAX_SEGMENT_TOPICS = 4_096
MOST_STRETCHES = 64
"""That are asked for a topic before the log itself is."""


class Hole(NamedTuple):
    """Records that should be in the log and can't be read: an exact interval, reported and never silently skipped.

    `length` bytes at `offset` of `segment` are unreadable; 0 when the records aren't there at all.
    """

    segment: int
    offset: int
    length: int
    first_sequence: int
    last_sequence: int
    why: str


class Entries:
    """The stretches of a segment: columns of sequence, offset, time and topic numbers."""

    __slots__ = ("ats", "numbers", "offsets", "places_only", "sequences", "topics")

    def __init__(self, *, places_only: bool = False) -> None:
        self.places_only = places_only
        """Whether only the places were read: no topics, and perhaps not every stretch."""
        self.sequences = array("Q")
        self.offsets = array("Q")
        self.ats = array("q")
        self.topics: list[list[int] | None] = []
        """Of each stretch that is finished; a number counts in `numbers`."""
        self.numbers: dict[str, int] | None = {}

    def number(self, topics: set[str]) -> list[int] | None:
        """The numbers of a stretch's topics; None when they are too many."""
        numbers = self.numbers
        if numbers is None:
            return None
        for topic in sorted(topics):
            numbers.setdefault(topic, len(numbers))
        if len(numbers) > MAX_SEGMENT_TOPICS:
            self.numbers = None
        if len(topics) > MAX_ENTRY_TOPICS or self.numbers is None:
            return None
        return sorted(numbers[topic] for topic in topics)


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
        self.holes: tuple[Hole, ...] = ()
        self._next_entry = 0
        self._entries: Entries | None = Entries()
        self._entry_topics: set[str] = set()

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
            entries.topics.append(entries.number(self._entry_topics))
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

    def _entry(self, entries: Entries | None, number: int) -> tuple[int, int]:
        if entries is None or number < 0:
            return HEADER_SIZE, self.first_sequence
        return entries.offsets[number], entries.sequences[number]

    def hole_at(self, offset: int) -> Hole | None:
        """The known hole whose bytes start at `offset`."""
        return next((hole for hole in self.holes if hole.offset == offset and hole.length), None)

    def may_hold(self, topic: str, sequence: int) -> bool:
        """Whether a record of that topic may stand at that sequence or behind it, in a segment that is being written. Looks at
        the newest stretches alone: what begins further back is to be read."""
        # In this order: the writer names a stretch's topics before it begins the next.
        last, entries = self._entry_topics, self._entries
        numbers = entries.numbers if entries is not None and not entries.places_only else None
        if entries is None or numbers is None or self.holes or topic in last:
            return True
        number = numbers.get(topic)
        if number is None:
            return False
        first = max(bisect_right(entries.sequences, sequence) - 1, 0)
        if len(entries.topics) - first > MOST_STRETCHES:
            return True
        return any(one is None or number in one for one in entries.topics[first:])

    @property
    def topics(self) -> tuple[str, ...] | None:
        """All topics of the segment, or None when they aren't known, or too many to be listed."""
        entries = self._entries
        if entries is None or entries.numbers is None or entries.places_only:
            return None
        return tuple(dict.fromkeys((*entries.numbers, *sorted(self._entry_topics))))

    def entries(self) -> list[tuple[int, int, int, list[int] | None]]:
        """(sequence, offset, at, topic numbers) of each stretch; for readers that split a segment among workers."""
        entries = self._entries
        if entries is None or entries.places_only:
            return []
        numbers = list(entries.topics)
        if len(numbers) < len(entries.sequences):
            numbers.append(entries.number(self._entry_topics))
        return list(zip(entries.sequences, entries.offsets, entries.ats, numbers, strict=True))

    def places(self, limit: int) -> tuple[array[int], array[int], array[int]]:
        """Sequences, offsets and times of at most `limit` stretches, evenly chosen."""
        entries = self._entries or Entries()
        step = -(-len(entries.sequences) // limit) or 1
        return entries.sequences[::step], entries.offsets[::step], entries.ats[::step]

    # Entries come and go; who reads meanwhile keeps those it has.

    @property
    def has_entries(self) -> bool:
        """Whether places are found without walking."""
        return self._entries is not None

    @property
    def is_whole(self) -> bool:
        """Whether every entry is here with its topics."""
        return self._entries is not None and not self._entries.places_only

    def set_entries(self, entries: Entries | None) -> None:
        """Take the entries of the same segment, or let go of them."""
        self._entries = entries

    def take_entries(self, other: SegmentIndex) -> None:
        """Take the entries that another index of the same segment has."""
        self._entries, self._entry_topics = other._entries, other._entry_topics
