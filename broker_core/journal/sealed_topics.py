"""Which topics sealed segments have: who wants one of them, as a new queue does, needn't read all the others.

A sealed segment's sidecar names its topics. It is read once, when somebody wants to know, and of each topic four bytes are
kept. So what is said here is either certain, "it has none of these", or a reason to read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Final

from broker_core.batch import hash64
from broker_core.journal.held import Segment
from broker_core.journal.index import SegmentIndex
from broker_core.journal.segment import index_path
from broker_core.journal.sidecar import load

SIDECARS_AT_ONCE: Final = 16
"""Read in one go, a millisecond or two each: others want the reader thread too."""
MOST_KEPT: Final = 2_000_000
"""Topics of all segments together, four bytes each; then it begins anew."""


class SealedTopics:
    """Of the segments of one log. Belongs to the reader thread."""

    def __init__(self) -> None:
        self._known: dict[SegmentIndex, array[int] | None] = {}
        """By the index of their segments, which swaps leave as it is; None: a segment has too many topics to be named."""
        self._kept = 0

    def next_of(self, topics: Collection[str], segments: Sequence[Segment], sequence: int) -> int:
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
            if known is None or any(_has(known, one) for one in wanted):
                break
            sequence = index.last_sequence + 1
        return sequence

    def _learn(self, segment: Segment) -> None:
        index = segment.index
        topics = index.topics
        if topics is None:
            found = load(index_path(segment.path), index.instance, index.first_sequence)
            # Another segment's would say that topics aren't here which are.
            same = found is not None and (found.end, found.header_crc) == (index.end, index.header_crc)
            topics = found.topics if found is not None and same else None
        if self._kept > MOST_KEPT:
            self._known.clear()
            self._kept = 0
        self._known[index] = None if topics is None else array("I", sorted(map(_short, topics)))
        self._kept += 1 + len(topics or ())


def _short(topic: str) -> int:
    return hash64(topic) & 0xFFFF_FFFF


def _has(known: array[int], one: int) -> bool:
    at = bisect_left(known, one)
    return at < len(known) and known[at] == one
