"""THE FORMAT of a sealed segment's topics, the second member of its sidecar: which stretches hold which topics.

    +--------------------------------------------------------------------------------------------+
    | 0 topics n u32 | 4 stretches m u32 | 8 names' length u32 | 12 places' length of "any" u32      |
    | 16 names: each UTF-8 and a zero byte, in the order of their bytes; zeros to a multiple of 4   |
    | n lengths u32, of the places of each topic | places of "any" | places of each topic ...        |
    +--------------------------------------------------------------------------------------------+

Places are numbers of stretches, ascending: the first as it is, then how far each is from the one before, in LEB128 (seven bits
a byte, the low ones first; bit 7 says that another follows). A topic without places may be in any stretch: it is in more than
half of them, and naming these would spare little. "any" are the stretches that may hold every topic, because theirs were too many
to be remembered while the segment was written. So it has at most a byte for a record, as a rule, and MOST_PAIRS bytes.

Names stand as they are, since subscriptions ask by patterns too. One is found by looking for its bytes between two zeros.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
"""Of the stretches of a segment: those that are meant."""
_Ints = npt.NDArray[np.int64]

MAX_TOPICS: Final = 65_536
MAX_PAIRS: Final = 1_000_000
"""A topic and a stretch that holds it, of one segment, four bytes each while it is written."""
_HEAD = struct.Struct("<IIII")
_LIMITS = np.array([1 << 7 * more for more in range(1, 5)])
"""The least step that takes one byte more."""


class TopicIndex:
    """What a sealed segment has of topics. Never changes."""

    __slots__ = ("_any", "_bounds", "_names", "_places", "stretches")

    def __init__(self, names: bytes, stretches: int, any_topic: bytes, lengths: _Ints, places: bytes) -> None:
        self.stretches = stretches
        self._names = b"\0" + names
        """With a zero before and behind each."""
        self._any = any_topic
        self._bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        self._places = places
        if (
            (len(names) and names[-1])
            or names.count(b"\0") != len(lengths)
            or self._bounds[-1] != len(places)
        ):
            raise ValueError("the topics don't fit their places")

    @classmethod
    def build(cls, names: Collection[str], stretches: Sequence[Sequence[int] | None]) -> TopicIndex:
        """Of the numbers of each stretch's topics, which count in `names`; None: any topic. A name that no stretch has may be in all."""
        encoded = [name.encode() for name in names]
        if any(b"\0" in name for name in encoded):  # no broker takes such a topic
            encoded, stretches = [], [None] * len(stretches)
        order = sorted(range(len(encoded)), key=encoded.__getitem__)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        numbers = [np.array(() if one is None else one, np.int64) for one in stretches]
        counts = [len(one) for one in numbers]
        topics = rank[np.concatenate(numbers)] if sum(counts) else np.zeros(0, np.int64)
        places = np.repeat(np.arange(len(stretches)), counts)
        # By 16 bits NumPy counts and needn't compare.
        sort = np.argsort(topics.astype(np.uint16) if len(order) <= MAX_TOPICS else topics, kind="stable")
        topics, places = topics[sort], places[sort]
        often = np.bincount(topics, minlength=len(order)) * 2 > len(stretches)
        kept = ~often[topics]
        data, lengths = _encode(topics[kept], places[kept], len(order))
        unknown = np.flatnonzero([one is None for one in stretches])
        return cls(
            b"".join(encoded[one] + b"\0" for one in order),
            len(stretches),
            _encode(np.zeros(len(unknown), np.int64), unknown, 1)[0],
            lengths,
            data,
        )

    def encode(self) -> bytes:
        """The member's bytes, before they are compressed."""
        names, lengths = self._names[1:], np.diff(self._bounds).astype("<u4")
        head = _HEAD.pack(len(lengths), self.stretches, len(names), len(self._any))
        return b"".join((head, names, bytes(-len(names) % 4), lengths.tobytes(), self._any, self._places))

    @classmethod
    def decode(cls, raw: bytes) -> TopicIndex:
        """Read back; ValueError when it isn't one."""
        try:
            topics, stretches, names, unknown = _HEAD.unpack_from(raw)
            lengths_at = _HEAD.size + names + -names % 4
            lengths = np.frombuffer(raw, "<u4", topics, lengths_at).astype(np.int64)
        except struct.error as error:
            raise ValueError(f"no index of topics: {error}") from None
        at = lengths_at + 4 * topics
        return cls(
            raw[_HEAD.size : _HEAD.size + names], stretches, raw[at : at + unknown], lengths, raw[at + unknown :]
        )  # fmt: skip

    @property
    def topics(self) -> tuple[str, ...] | None:
        """All topics of the segment, or None when not all are known."""
        return None if self._any else self.topic_ranges()

    def topic_ranges(self) -> tuple[str, ...]:
        """The topics that are known."""
        return tuple(self._names[1:-1].decode().split("\0")) if len(self._names) > 1 else ()

    def topic_mask(self, topics: Iterable[str]) -> Mask:
        """The stretches that may hold one of these topics."""
        names = self._names
        found = (names.find(b"\0" + topic.encode() + b"\0") for topic in topics)
        return self._mask([names.count(b"\0", 0, at) for at in found if at >= 0])

    def ranges_matching(self, test: Callable[[str], bool]) -> Mask:
        """The stretches that may hold a topic that passes the test."""
        return self._mask([number for number, topic in enumerate(self.topic_ranges()) if test(topic)])

    def _mask(self, topics: list[int]) -> Mask:
        bounds = self._bounds
        parts = [self._places[bounds[number] : bounds[number + 1]] for number in topics]
        if not all(parts):
            return np.ones(self.stretches, np.bool_)
        made = np.zeros(self.stretches, np.bool_)
        made[_decode([self._any, *parts])] = True
        return made


def _encode(topics: _Ints, places: _Ints, count: int) -> tuple[bytes, _Ints]:
    """The places of each topic, which are in order, in LEB128, and how many bytes each topic's are."""
    steps = np.diff(places, prepend=0)
    first = np.diff(topics, prepend=-1) != 0
    steps[first] = places[first]
    sizes = 1 + np.searchsorted(_LIMITS, steps, side="right").astype(np.int64)
    at = np.cumsum(sizes) - sizes
    data = np.zeros(int(sizes.sum()), np.uint8)
    for byte in range(int(sizes.max(initial=0))):
        has = sizes > byte
        data[at[has] + byte] = steps[has] >> 7 * byte & 0x7F | np.where(sizes[has] > byte + 1, 0x80, 0)
    return data.tobytes(), np.bincount(topics, sizes, count).astype(np.int64)


def _decode(parts: Sequence[bytes]) -> _Ints:
    """The places of some topics, one behind the other. ValueError for what ends in the middle of one."""
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
