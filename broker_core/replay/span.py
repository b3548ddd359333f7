"""Range of the log that a replay reads, computed from the client's bookmark and the bounds of the log.

    begin   a sequence, or the first record accepted at or after a moment, which may be in the future
    end     a sequence, or a moment; without an end the replay continues with live delivery

All records of a batch were accepted at the same time, so a moment never divides a batch.

`translate_bookmarks` first turns a bookmark of another site into one of this log: it finds the copy of that
record that a link wrote here. The rest of the module has no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from broker_core.bookmark import (
    MAX_SEQUENCE,
    AfterBookmarks,
    AtTime,
    Bookmark,
    BookmarkRange,
    Epoch,
    Now,
    Start,
)
from broker_core.delivery.ports import InstanceResources
from broker_core.journal.removal_records import RemovedInterval
from broker_core.journal.segment import SegmentInfo
from broker_core.names import link_client_name

CHUNK_BYTES = 1024 * 1024
"""Bytes per read. Small, because replays use the same reader thread."""


class LocalPosition(NamedTuple):
    """Position in this log of a site's newest record that is not newer than a bookmark.

    `earliest` and `latest` are bounds of its sequence. They differ if the record was removed from the log.
    """

    earliest: int
    latest: int
    is_exact: bool = False
    """Whether it is the record that the bookmark names."""
    is_newest: bool = False
    """Whether this log has no later record of the site."""


async def translate_bookmarks(
    requested: Start | BookmarkRange,
    facilities: InstanceResources,
    upto: int,
    is_known: Callable[[str], bool],
) -> Start | BookmarkRange:
    """Return a start or a range with bookmarks of this instance in place of those of other sites.

    A bookmark of this instance decides alone: its client has everything before it in this log. Otherwise a
    list begins at its smallest local sequence, and a range ends at its largest. Bookmarks stay unchanged when
    this log has no record of their sites up to sequence `upto`, and at the end of a range also when it does
    not have the record yet. `is_known` tells whether a link has ever brought records of a site.
    """
    if not isinstance(requested, BookmarkRange):
        return (await _translate(requested, facilities, upto, is_known, is_end=False))[0]
    begin, is_exact = await _translate(requested.begin, facilities, upto, is_known, is_end=False)
    end, is_end_exact = await _translate(requested.end, facilities, upto, is_known, is_end=True)
    # A bracket includes or excludes the named record. In its place stands an older one: the client has it
    # before the begin, and needs it before the end.
    return BookmarkRange(
        begin, requested.begin_included and is_exact, end, requested.end_included or not is_end_exact
    )


async def _translate(
    start: Start, facilities: InstanceResources, upto: int, is_known: Callable[[str], bool], *, is_end: bool
) -> tuple[Start, bool]:
    """Return a start with bookmarks of this instance, and whether it names the record that was meant."""
    if not isinstance(start, AfterBookmarks):
        return start, True
    local_bookmarks = tuple(one for one in start.bookmarks if one.origin == facilities.instance)
    if local_bookmarks:
        return AfterBookmarks(local_bookmarks), True
    positions = [
        await find_local_position(one, facilities, upto) for one in start.bookmarks if is_known(one.origin)
    ]
    known = [one for one in positions if one is not None]
    if is_end:
        known = [one for one in known if one.is_exact or not one.is_newest]
    if not known:
        return start, True
    position = max(known, key=lambda one: one.latest) if is_end else min(known)
    sequence = position.latest if is_end else position.earliest
    return AfterBookmarks((Bookmark(facilities.instance, sequence),)), position.is_exact


async def find_local_position(
    bookmark: Bookmark, facilities: InstanceResources, upto: int
) -> LocalPosition | None:
    """Return the position of a site's newest record that is not newer than its bookmark.

    `bookmark.origin` is the site; a link copied its records into this log.

    When all records of the site are newer, the position is before them, or in the removed beginning of the
    log. Returns None when a complete log has no record of the site. Searches from the newest segment
    backwards, because such bookmarks are mostly recent.
    """
    publisher, newer = link_client_name(bookmark.origin), 0
    for segment in reversed(facilities.journal.segments()):
        at, found = segment.first_sequence, None
        while at <= min(segment.last_sequence, upto):
            batches = await facilities.reader.run(
                facilities.journal.read, at, CHUNK_BYTES, min(segment.last_sequence, upto)
            )
            if not batches:
                break
            for batch in batches:
                if batch.publisher_name != publisher:
                    continue
                numbers, sequences = batch.publisher_sequences(), batch.sequences()
                before = int(np.searchsorted(numbers, bookmark.sequence, "right"))
                if before:
                    local = int(sequences[before - 1])
                    found = LocalPosition(local, local, int(numbers[before - 1]) == bookmark.sequence)
                if before < len(numbers):
                    newer = min(newer or MAX_SEQUENCE, int(sequences[before]))
            at = batches[-1].last_sequence + 1
        if found is not None:
            return found._replace(is_newest=not newer)
    if facilities.journal.begins_at > 1:
        return LocalPosition(0, facilities.journal.begins_at - 1, is_newest=not newer)
    return LocalPosition(newer - 1, newer - 1) if newer else None


NEVER = 2**63 - 1
"""Time in ns that never comes: no end."""


class LogBounds(NamedTuple):
    """Oldest and newest sequence that a log holds, and the instance that owns it.

    Empty: newest = oldest - 1. `removed`: its intervals before `oldest`.
    """

    instance: str
    oldest: int
    newest: int
    in_flight: int = 0
    """Newest sequence that a subscriber was given while its record is in flight to the disk."""
    shown: int = 0
    """Newest sequence that a subscriber was ever given, even if the disk has refused its record."""
    removed: Sequence[RemovedInterval] = ()


class ReplaySpan(NamedTuple):
    """Range of the log, by sequence and by acceptance time.

    It begins with the first record at sequence `first` or later that was accepted at `not_before` (ns UTC) or
    later. It ends with sequence `last`, and before the first record accepted later than `not_after` (ns UTC).
    """

    first: int
    not_before: int = 0
    last: int = MAX_SEQUENCE
    not_after: int = NEVER

    @property
    def is_bounded(self) -> bool:
        """Whether the span has an end. A replay with an end never continues with live delivery."""
        return self.last != MAX_SEQUENCE or self.not_after != NEVER

    def is_past_end(self, next_sequence: int, newest: int, now: int) -> bool:
        """Return whether no further record can belong to the span.

        `newest` is the newest existing sequence, whether delivered or not; `now` is ns UTC.
        """
        return next_sequence > self.last or (now > self.not_after and next_sequence > newest)


class SpanResult(NamedTuple):
    """A span, and the notices that the client must get about its bookmarks."""

    span: ReplaySpan
    missing: tuple[int, int] | None = None
    """First and last requested sequence that were removed from the log; None if none were.

    For a moment inside a removed interval, that whole interval counts: only its ends are known.
    """
    unknown: tuple[Bookmark, ...] = ()
    """Bookmarks that were never in this log."""
    from_now: bool = False
    """Whether no bookmark of the beginning was known, so that the replay starts at NOW."""


def find_span(requested: Start | BookmarkRange, log: LogBounds) -> SpanResult:
    """Return the range of the log that a bookmark or a bookmark range names.

    A begin bookmark that was never in this log counts as NOW, and so does such an end: the newest record at
    the time of the call.
    """
    if not isinstance(requested, BookmarkRange):
        found = _begin(requested, None, log)
        return found._replace(missing=found.missing or _removed_in_time(found.span, log))
    found = _begin(requested.begin, requested.begin_included, log)
    span, unknown = _with_end(found.span, requested.end, requested.end_included, log)
    missing = found.missing or _removed_in_time(span, log)
    if missing is not None:
        missing = (missing[0], min(missing[1], span.last)) if span.last >= missing[0] else None
    return found._replace(span=span, missing=missing, unknown=found.unknown + unknown)


def is_reversed(span: ReplaySpan, segments: Sequence[SegmentInfo]) -> bool:
    """Return whether a span between a moment and a record ends before it begins.

    The acceptance times of the record's segment decide, so False is uncertain for a moment within these.
    """
    for segment in segments:
        if span.not_before and segment.first_sequence <= span.last <= segment.last_sequence:
            return segment.last_at < span.not_before
        if not span.not_before and segment.first_sequence <= span.first <= segment.last_sequence:
            return segment.first_at > span.not_after
    return False


def depends_on_end(requested: Start | BookmarkRange, log: LogBounds) -> bool:
    """Return whether a span begins or ends at the log's current end: at NOW, or at an unknown bookmark."""
    return any(
        isinstance(one, Now) or (isinstance(one, AfterBookmarks) and _known(one.bookmarks, log)[1] != ())
        for one in (
            (requested.begin, requested.end) if isinstance(requested, BookmarkRange) else (requested,)
        )
    )


def _begin(start: Start, included: bool | None, log: LogBounds) -> SpanResult:
    """Return the span from `start` on.

    `included` comes from the bracket of a range: True for `[`, False for `(`. Without a bracket a moment is
    included and a bookmark is not.
    """
    match start:
        case Epoch():
            return SpanResult(ReplaySpan(log.oldest))
        case Now():
            return SpanResult(ReplaySpan(log.newest + 1))
        case AtTime(at):
            return SpanResult(ReplaySpan(log.oldest, not_before=at + 1 if included is False else at))
        case AfterBookmarks(bookmarks):
            known, unknown = _known(bookmarks, log)
            if not known:
                return SpanResult(ReplaySpan(log.newest + 1), unknown=unknown, from_now=True)
            first = max(min(known) + (0 if included else 1), 1)
            if first >= log.oldest:
                return SpanResult(ReplaySpan(first), unknown=unknown)
            return SpanResult(ReplaySpan(log.oldest), (first, log.oldest - 1), unknown)


def _removed_in_time(span: ReplaySpan, log: LogBounds) -> tuple[int, int] | None:
    """Return the first and the last removed sequence that may belong to a span which begins at a moment."""
    if not span.not_before:
        return None
    found = [one for one in log.removed if one.last_at >= span.not_before and one.first_at <= span.not_after]
    return (found[0].first, found[-1].last) if found else None


def _with_end(
    span: ReplaySpan, end: Start, included: bool, log: LogBounds
) -> tuple[ReplaySpan, tuple[Bookmark, ...]]:
    """Return the span with an end, and the end's unknown bookmarks. `included`: the bracket is `]`."""
    match end:
        case AtTime(at):
            return span._replace(not_after=at if included else at - 1), ()
        case AfterBookmarks(bookmarks):
            # The log never reaches the sequence of a refused record before another record is stored.
            known, unknown = _known(bookmarks, log._replace(shown=log.in_flight))
            if known:
                return span._replace(last=max(known) - (0 if included else 1)), unknown
            return span._replace(last=log.newest), unknown
        case _:
            return span._replace(last=log.newest), ()


def _known(bookmarks: tuple[Bookmark, ...], log: LogBounds) -> tuple[list[int], tuple[Bookmark, ...]]:
    """Return the sequences of the bookmarks that are or were in this log, and the remaining bookmarks."""
    newest = max(log.newest, log.shown)
    unknown = tuple(b for b in bookmarks if b.origin != log.instance or b.sequence > newest)
    return [b.sequence for b in bookmarks if b not in unknown], unknown
