"""Where sealed segments have a topic: who wants one, as a queue or a replay does, needn't read all the others.

A sealed segment's sidecar says in which of its stretches its topics are. It is read once, when somebody wants to know, and of
each topic four bytes are kept, by which segments are passed over; and the places of those that were asked for last. So what is said
here is either certain, "it has none of these up to there", or a reason to read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

from broker_core.batch import hash64
from broker_core.journal.held import Segment
from broker_core.journal.index import SegmentIndex, Stretch
from broker_core.journal.segment import index_path
from broker_core.journal.sidecar import load

SIDECARS_AT_ONCE: Final = 16
"""Read in one go, a millisecond or two each: others want the reader thread too."""
MOST_KEPT: Final = 2_000_000
"""Topics of all segments together, four bytes each; then it begins anew."""
MOST_PLACES: Final = 64
"""Segments and choices of topics whose stretches are remembered, some 200 KB each at most."""


class SealedTopics:
    """Of the segments of one log. Belongs to the reader thread."""

    def __init__(self) -> None:
        self._known: dict[SegmentIndex, array[int] | None] = {}
        """By the index of their segments, which swaps leave as it is; None: a segment has too many topics to be named."""
        self._kept = 0
        self._places: OrderedDict[tuple[SegmentIndex, frozenset[str]], list[Stretch]] = OrderedDict()
        """Those asked for longest ago first."""

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
            found = self._places[key] = whole.stretches(whole.topic_index.of(topics))
            if len(self._places) > MOST_PLACES:
                self._places.popitem(last=False)
        self._places.move_to_end(key)
        at = bisect_left(found, sequence, key=_last)
        return max(found[at].first, sequence) if at < len(found) else None

    def _learn(self, segment: Segment) -> None:
        found = _sidecar_of(segment)
        topics = None if found is None or found.topic_index is None else found.topic_index.topics
        if self._kept > MOST_KEPT:
            self._known.clear()
            self._kept = 0
        self._known[segment.index] = None if topics is None else array("I", sorted(map(_short, topics)))
        self._kept += 1 + len(topics or ())


def _sidecar_of(segment: Segment) -> SegmentIndex | None:
    index = segment.index
    found = load(index_path(segment.path), index.instance, index.first_sequence)
    # Another segment's would say that topics aren't here which are.
    same = found is not None and (found.end, found.header_crc) == (index.end, index.header_crc)
    return found if same else None


def _last(stretch: Stretch) -> int:
    return stretch.last


def _short(topic: str) -> int:
    return hash64(topic) & 0xFFFF_FFFF


def _has(known: array[int], one: int) -> bool:
    at = bisect_left(known, one)
    return at < len(known) and known[at] == one
