"""Segments that an action may process, chosen from the log's segments and their pins. Pure.

* Only segments whose newest record is older than the cutoff; never the current one.
* Removal starts at the oldest segment and stops at the first that must stay, because the log may have no
  gaps. So one blocked segment keeps all newer ones, and each gets a reason.
* A segment with a pin isn't removed: a replay, a spool, a managed replay or another reader needs it.
* Archiving and compressing move nothing out of the log, so pins don't prevent them.
* A newest record with a time in the future was written while the clock was ahead. Such a segment counts as
  old as the earliest plausible modification time of its file and of the files of later segments, since its
  records are older than theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from broker_core.documents.journals import JournalAction, SkippedSegment
from broker_core.journal.open_segments import Pin
from broker_core.journal.segment import SegmentInfo

_NS_PER_S = 1_000_000_000
_NAMED = 20
"""Maximum number of owners named per segment; there may be thousands."""


class RetentionPlan(NamedTuple):
    """Effect of an action: the chosen segments, and the skipped ones with reasons.

    Reasons: current, archived, compressed, young, gap, or the type of the pin (open_segments.PIN_KINDS with
    underscores: replay, spool, managed_replay, …).
    """

    chosen: list[SegmentInfo]
    skipped: list[SkippedSegment]

    @property
    def nbytes(self) -> int:
        """Bytes of the chosen segments."""
        return sum(segment.nbytes for segment in self.chosen)


def plan_retention(
    action: JournalAction,
    segments: Sequence[SegmentInfo],
    older_than_ns: int,
    pins: Sequence[Pin],
    now_ns: int,
) -> RetentionPlan:
    """Choose the segments for an action.

    Args:
        action: archive, compress or remove.
        segments: All segments of the log.
        older_than_ns: Cutoff, ns UTC: segments whose newest record is older may be chosen.
        pins: Current pins of the log.
        now_ns: Current time, ns UTC.
    """
    chosen: list[SegmentInfo] = []
    skipped: list[SkippedSegment] = []
    blocked: SkippedSegment | None = None
    for segment in _plausible(segments, now_ns):
        stays = _find_skip(action, segment, older_than_ns, now_ns)
        if action == "remove":
            stays = (
                stays or _needed(segment, pins) or (blocked and structs.replace(blocked, name=segment.name))
            )
        if stays is None:
            chosen.append(segment)
            continue
        skipped.append(stays)
        if blocked is None:
            sentence = f"an older segment stays ({segment.name}), and the log may have no gaps"
            blocked = _skip_segment(segment, sentence, "gap")
    return RetentionPlan(chosen, skipped)


def _plausible(segments: Sequence[SegmentInfo], now_ns: int) -> list[SegmentInfo]:
    """Return the segments oldest first, with newest times in the future replaced by plausible ones.

    The replacement is the earliest modification time of this and all later segments' files.
    """
    found: list[SegmentInfo] = []
    written = now_ns
    for segment in sorted(segments, key=lambda one: one.first_sequence, reverse=True):
        if 0 < segment.written_at < written:
            written = segment.written_at
        found.append(segment._replace(last_at=written) if segment.last_at > now_ns else segment)
    return found[::-1]


def _find_skip(
    action: JournalAction, segment: SegmentInfo, older_than_ns: int, now_ns: int
) -> SkippedSegment | None:
    if segment.state == "current":
        return _skip_segment(segment, "it is being written", "current")
    if action == "archive" and segment.state == "archived":
        return _skip_segment(segment, "it is archived already", "archived")
    if action == "compress" and segment.compressed:
        return _skip_segment(segment, "it is compressed already", "compressed")
    if segment.last_at >= older_than_ns:
        age, minimum_age = now_ns - segment.last_at, now_ns - older_than_ns
        sentence = f"its newest record is {age // _NS_PER_S} s old, younger than {minimum_age // _NS_PER_S} s"
        return _skip_segment(segment, sentence, "young")
    return None


def _needed(segment: SegmentInfo, pins: Sequence[Pin]) -> SkippedSegment | None:
    holding = [pin for pin in pins if pin.sequence <= segment.last_sequence]
    if not holding:
        return None
    owners = sorted({pin.owner or "a reader" for pin in holding})
    # The pin furthest behind keeps the segment longest.
    slowest = min(holding, key=lambda pin: pin.sequence)
    more = f" and {len(owners) - _NAMED} more" if len(owners) > _NAMED else ""
    sentence = f"needed by {', '.join(owners[:_NAMED])}{more}"
    return _skip_segment(segment, sentence, slowest.kind.replace(" ", "_"))


def _skip_segment(segment: SegmentInfo, sentence: str, reason: str) -> SkippedSegment:
    return SkippedSegment(name=segment.name, why=sentence, reason=reason)
