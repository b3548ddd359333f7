"""What is known of one segment's content: a sparse index by sequence and time, its topics, its holes.

Kept in memory while a segment is written, and beside it as `.index.gz` when it is sealed: gzip of one JSON
document. A sidecar saves a scan at opening; it is never trusted over the segment: a reader checks every batch it
gets to, and a sidecar that is missing or doesn't fit is rebuilt.

    {"version":1, "instance":…, "segment":first sequence, "epoch":…, "end":content's end offset, "records":…,
     "last_sequence":…, "first_at":ns, "last_at":ns, "topics":[…]|null,
     "entries":[[sequence, offset, at, [topic numbers]|null], …],
     "holes":[[offset, length, first_sequence, last_sequence, why], …]}

One entry per about 64 KiB: the batch that starts at `offset` starts with `sequence`, and the entry's stretch ends
where the next one's starts. `at` is the greatest accepted_at up to and with that batch, so it never falls, even when
a clock was set back. Topic lists are null when there are too many to be worth naming: then any may be there.
"""

from __future__ import annotations

import gzip
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from isal import igzip

from broker_core.batch import Batch
from broker_core.journal.segment import HEADER_SIZE

VERSION = 1
ENTRY_BYTES = 64 * 1024
MAX_ENTRY_TOPICS = 64
MAX_SEGMENT_TOPICS = 4_096


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


class SegmentIndex:
    """One segment's content, added to batch by batch."""

    __slots__ = (
        "_ats",
        "_entry_topics",
        "_entry_topics_done",
        "_next_entry",
        "_numbers",
        "_offsets",
        "_sequences",
        "end",
        "epoch",
        "first_at",
        "first_sequence",
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
        self.end = HEADER_SIZE
        self.records = 0
        self.last_sequence = first_sequence - 1
        self.first_at = 0
        self.last_at = 0
        self.holes: tuple[Hole, ...] = ()
        self._next_entry = 0
        self._sequences = array("Q")
        self._offsets = array("Q")
        self._ats = array("q")
        self._numbers: dict[str, int] | None = {}
        self._entry_topics: set[str] = set()
        self._entry_topics_done: list[list[int] | None] = []

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
        if self._sequences:
            self._entry_topics_done.append(self._number_topics())
        else:
            self.first_at = self.last_at
        self._entry_topics = set()
        # The sequence last: readers in other threads bisect the sequences and then take the offset of the same row.
        self._ats.append(self.last_at)
        self._offsets.append(offset)
        self._sequences.append(sequence)
        self._next_entry = offset + ENTRY_BYTES

    def _number_topics(self) -> list[int] | None:
        numbers = self._numbers
        if numbers is None:
            return None
        for topic in sorted(self._entry_topics):
            numbers.setdefault(topic, len(numbers))
        if len(numbers) > MAX_SEGMENT_TOPICS:
            self._numbers = None
        if len(self._entry_topics) > MAX_ENTRY_TOPICS or self._numbers is None:
            return None
        return sorted(numbers[topic] for topic in self._entry_topics)

    def find(self, sequence: int) -> tuple[int, int]:
        """(offset, its sequence) of an indexed batch at or before the one with `sequence`."""
        return self._entry(bisect_right(self._sequences, sequence) - 1)

    def find_moment(self, at: int) -> tuple[int, int]:
        """(offset, its sequence) of an indexed batch at or before the first accepted at or after `at`.

        Both round down, and a reader walks on from there: `find` to a batch that may hold the sequence itself,
        hence bisect_right; here an entry that reaches `at` may not be the first that does, hence bisect_left.
        """
        return self._entry(bisect_left(self._ats, at, hi=len(self._sequences)) - 1)

    def _entry(self, number: int) -> tuple[int, int]:
        if number < 0:
            return HEADER_SIZE, self.first_sequence
        return self._offsets[number], self._sequences[number]

    def hole_at(self, offset: int) -> Hole | None:
        """The known hole whose bytes start at `offset`."""
        return next((hole for hole in self.holes if hole.offset == offset and hole.length), None)

    @property
    def topics(self) -> tuple[str, ...] | None:
        """All topics of the segment, or None when they are too many to be listed."""
        if self._numbers is None:
            return None
        return tuple(dict.fromkeys((*self._numbers, *sorted(self._entry_topics))))

    def entries(self) -> list[tuple[int, int, int, list[int] | None]]:
        """(sequence, offset, at, topic numbers) of each stretch; for readers that split a segment among workers."""
        numbers = list(self._entry_topics_done)
        if len(numbers) < len(self._sequences):
            numbers.append(self._number_topics())
        return list(zip(self._sequences, self._offsets, self._ats, numbers, strict=True))

    def encode(self) -> bytes:
        """The sidecar's bytes."""
        entries = self.entries()
        document: dict[str, Any] = {
            "version": VERSION,
            "instance": self.instance,
            "segment": self.first_sequence,
            "epoch": self.epoch,
            "end": self.end,
            "records": self.records,
            "last_sequence": self.last_sequence,
            "first_at": self.first_at,
            "last_at": self.last_at,
            "topics": None if self._numbers is None else list(self._numbers),
            "entries": entries,
            "holes": [hole[1:] for hole in self.holes],
        }
        packed: bytes = igzip.compress(orjson.dumps(document), compresslevel=1, mtime=0)
        return packed

    @classmethod
    def decode(cls, raw: bytes) -> SegmentIndex:
        """A sidecar read back; ValueError when it isn't one."""
        try:
            document = orjson.loads(gzip.decompress(raw))
            if document["version"] != VERSION:
                raise ValueError(f"version {document['version']} isn't known")
            made = cls(document["instance"], document["segment"], document["epoch"])
            made._fill(document)
        except (OSError, EOFError, KeyError, TypeError, IndexError, OverflowError) as error:
            raise ValueError(f"not an index: {error}") from None
        return made

    def _fill(self, document: dict[str, Any]) -> None:
        self.end, self.records = document["end"], document["records"]
        self.last_sequence = document["last_sequence"]
        self.first_at, self.last_at = document["first_at"], document["last_at"]
        topics = document["topics"]
        self._numbers = None if topics is None else {topic: number for number, topic in enumerate(topics)}
        for sequence, offset, at, numbers in document["entries"]:
            self._sequences.append(sequence)
            self._offsets.append(offset)
            self._ats.append(at)
            self._entry_topics_done.append(numbers)
        self.holes = tuple(Hole(self.first_sequence, *hole) for hole in document["holes"])


def load(path: Path, instance: str, first_sequence: int) -> SegmentIndex | None:
    """The sidecar at `path` if it is whole and belongs to this segment, else None."""
    try:
        found = SegmentIndex.decode(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if (found.instance, found.first_sequence) == (instance, first_sequence) else None
