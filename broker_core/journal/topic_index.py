"""Format of a segment's topic index, the second member of its sidecar: the ranges with each topic.

A segment is divided into ranges of about 64 KiB (*stretches* in the format).

    +--------------------------------------------------------------------------------------------+
    | 0 topics n u32 | 4 stretches m u32 | 8 names' length u32 | 12 places' length of "any" u32      |
    | 16 names: each UTF-8 and a zero byte, in the order of their bytes; zeros to a multiple of 4   |
    | n lengths u32, of the places of each topic | places of "any" | places of each topic ...        |
    +--------------------------------------------------------------------------------------------+

Places are ascending numbers of ranges: the first itself, then the difference of each from the one before, in
LEB128 (seven bits a byte, the low ones first; bit 7 means that another byte follows). A topic without places
may be in any range: it is in more than half of them, and listing these would save little. "any" are the
ranges that may have every topic, because they had too many to store while the segment was written. So as a
rule the places take at most a byte per record, and at most MAX_PAIRS bytes.

Names are stored as text, since subscriptions also use patterns. A name is found by a search for its bytes
between two zeros.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
"""Selection of a segment's ranges."""
_Ints = npt.NDArray[np.int64]

MAX_TOPICS: Final = 65_536
"""Maximum number of topics per segment."""
MAX_PAIRS: Final = 1_000_000
"""Maximum number of (topic, range) pairs per segment, four bytes each while it is written."""
_HEAD = struct.Struct("<IIII")
_LIMITS = np.array([1 << 7 * more for more in range(1, 5)])
"""Smallest differences that take one more byte."""


class TopicIndex:
    """Topics of a sealed segment, and the ranges that have each. Immutable."""

    __slots__ = ("_any", "_bounds", "_names", "_positions", "range_count")

    def __init__(
        self, names: bytes, range_count: int, any_topic: bytes, lengths: _Ints, positions: bytes
    ) -> None:
        self.range_count = range_count
        self._names = b"\0" + names
        """Names with a zero byte before and after each."""
        self._any = any_topic
        self._bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        self._positions = positions
        if (
            (len(names) and names[-1])
            or names.count(b"\0") != len(lengths)
            or self._bounds[-1] != len(positions)
        ):
            raise ValueError("the topics don't fit their places")

    @classmethod
    def build(cls, names: Collection[str], ranges: Sequence[Sequence[int] | None]) -> TopicIndex:
        """Build the index from the topics of each range, as indexes into `names`.

        A range is None if its topics are unknown: then it may have any topic. A name that no range lists may
        be in all.
        """
        encoded = [name.encode() for name in names]
        if any(b"\0" in name for name in encoded):  # no broker accepts such a topic
            encoded, ranges = [], [None] * len(ranges)
        order = sorted(range(len(encoded)), key=encoded.__getitem__)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        numbers = [np.array(() if one is None else one, np.int64) for one in ranges]
        counts = [len(one) for one in numbers]
        topics = rank[np.concatenate(numbers)] if sum(counts) else np.zeros(0, np.int64)
        positions = np.repeat(np.arange(len(ranges)), counts)
        # NumPy sorts 16-bit keys by radix sort, without comparing.
        sort = np.argsort(topics.astype(np.uint16) if len(order) <= MAX_TOPICS else topics, kind="stable")
        topics, positions = topics[sort], positions[sort]
        often = np.bincount(topics, minlength=len(order)) * 2 > len(ranges)
        is_indexed = ~often[topics]
        data, lengths = _encode(topics[is_indexed], positions[is_indexed], len(order))
        unknown = np.flatnonzero([one is None for one in ranges])
        return cls(
            b"".join(encoded[one] + b"\0" for one in order),
            len(ranges),
            _encode(np.zeros(len(unknown), np.int64), unknown, 1)[0],
            lengths,
            data,
        )

    def encode(self) -> bytes:
        """Return the bytes of the member, not compressed."""
        names, lengths = self._names[1:], np.diff(self._bounds).astype("<u4")
        head = _HEAD.pack(len(lengths), self.range_count, len(names), len(self._any))
        return b"".join((head, names, bytes(-len(names) % 4), lengths.tobytes(), self._any, self._positions))

    @classmethod
    def decode(cls, raw: bytes) -> TopicIndex:
        """Parse the bytes of the member. Raises ValueError when they are no topic index."""
        try:
            topics, range_count, names, unknown = _HEAD.unpack_from(raw)
            lengths_at = _HEAD.size + names + -names % 4
            lengths = np.frombuffer(raw, "<u4", topics, lengths_at).astype(np.int64)
        except struct.error as error:
            raise ValueError(f"no index of topics: {error}") from None
        at = lengths_at + 4 * topics
        return cls(
            raw[_HEAD.size : _HEAD.size + names],
            range_count,
            raw[at : at + unknown],
            lengths,
            raw[at + unknown :],
        )

    @property
    def topics(self) -> tuple[str, ...] | None:
        """Topics of the segment, or None when not all are known."""
        return None if self._any else self.known_topics()

    def known_topics(self) -> tuple[str, ...]:
        """Return the known topics."""
        return tuple(self._names[1:-1].decode().split("\0")) if len(self._names) > 1 else ()

    def topic_mask(self, topics: Iterable[str]) -> Mask:
        """Return the ranges that may have one of these topics."""
        names = self._names
        found = (names.find(b"\0" + topic.encode() + b"\0") for topic in topics)
        return self._mask([names.count(b"\0", 0, at) for at in found if at >= 0])

    def mask_matching(self, test: Callable[[str], bool]) -> Mask:
        """Return the ranges that may have a topic for which `test` is true."""
        return self._mask([number for number, topic in enumerate(self.known_topics()) if test(topic)])

    def _mask(self, topics: list[int]) -> Mask:
        """Return the ranges that may have one of these topics, given by number."""
        bounds = self._bounds
        parts = [self._positions[bounds[number] : bounds[number + 1]] for number in topics]
        if not all(parts):
            return np.ones(self.range_count, np.bool_)
        made = np.zeros(self.range_count, np.bool_)
        made[_decode([self._any, *parts])] = True
        return made


def _encode(topics: _Ints, positions: _Ints, count: int) -> tuple[bytes, _Ints]:
    """Return the places of each topic in LEB128, and the number of bytes of each topic's places.

    `topics` must be in ascending order, and `positions` within each topic.
    """
    steps = np.diff(positions, prepend=0)
    first = np.diff(topics, prepend=-1) != 0
    steps[first] = positions[first]
    sizes = 1 + np.searchsorted(_LIMITS, steps, side="right").astype(np.int64)
    at = np.cumsum(sizes) - sizes
    data = np.zeros(int(sizes.sum()), np.uint8)
    for byte in range(int(sizes.max(initial=0))):
        has = sizes > byte
        data[at[has] + byte] = steps[has] >> 7 * byte & 0x7F | np.where(sizes[has] > byte + 1, 0x80, 0)
    return data.tobytes(), np.bincount(topics, sizes, count).astype(np.int64)


def _decode(parts: Sequence[bytes]) -> _Ints:
    """Return the places in some topics' bytes, one topic after the other.

    Raises ValueError for a truncated place.
    """
    raw = np.frombuffer(b"".join(parts), np.uint8)
    stops = np.flatnonzero(raw < 0x80) + 1
    if not len(raw):
        return stops
    if stops[-1:].tolist() != [len(raw)]:
        raise ValueError("the places of a topic are cut off")
    starts = np.concatenate((np.zeros(1, np.int64), stops[:-1]))
    shifts = 7 * (np.arange(len(raw)) - np.repeat(starts, stops - starts))
    steps = np.add.reduceat((raw & 0x7F).astype(np.int64) << shifts, starts)
    sums: _Ints = np.cumsum(steps)
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    firsts = np.searchsorted(starts, (np.cumsum(lengths) - lengths)[lengths > 0])
    before = sums[firsts] - steps[firsts]
    sums -= np.repeat(before, np.diff(firsts, append=len(steps)))
    return sums
