"""Where in this log a record of another site stands, which a link has brought.

Where a replay begins and ends, decided from the bookmark a client gave and what the log holds. Pure.

    begin   a sequence, or the first record accepted at or after a moment, also one that is still to come
    end     a sequence, or a moment; without an end the replay goes over into live delivery

All records of a batch were accepted at the same time, so a moment never divides a batch.
"""

from __future__ import annotations

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
from broker_core.names import link_client_name

CHUNK_BYTES = 1024 * 1024
"""Read at a time: replays want the reader too."""


async def translate_bookmarks(
    start: AfterBookmarks, facilities: InstanceResources, upto: int
) -> AfterBookmarks:
    """The bookmarks as places in this log, up to its record `upto`.

    One of this instance says all: it was had with everything that stands before it here. Else the record of another site that stands
    first counts. Bookmarks of sites whose records aren't here stay as they are.
    """
    own = tuple(one for one in start.bookmarks if one.origin == facilities.instance)
    if own:
        return AfterBookmarks(own)
    places = [await local_sequence(one, facilities, upto) for one in start.bookmarks]
    known = [place for place in places if place is not None]
    return AfterBookmarks((Bookmark(facilities.instance, min(known)),)) if known else start


async def local_sequence(bookmark: Bookmark, facilities: InstanceResources, upto: int) -> int | None:
    """The last record here that the other site accepted as that one or before it; one before its first, when all that are here are
    newer. None when there are none. It looks from the newest segment backwards, as such bookmarks are mostly recent."""
    publisher, newer = link_client_name(bookmark.origin), None
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
                before = int(np.searchsorted(batch.publisher_sequences(), bookmark.sequence, "right"))
                sequences = batch.sequences()
                if before:
                    found = int(sequences[before - 1])
                elif found is None:
                    newer = min(newer or MAX_SEQUENCE, int(sequences[0]))
            at = batches[-1].last_sequence + 1
        if found is not None:
            return found
    return newer - 1 if newer is not None else None


NEVER = 2**63 - 1
"""A time that doesn't come, in ns."""


class LogBounds(NamedTuple):
    """What the log holds: records `oldest` to `newest` that this instance accepted. newest = oldest - 1: none."""

    instance: str
    oldest: int
    newest: int


class ReplaySpan(NamedTuple):
    """A stretch of the log.

    It begins with the first record that is `first` or later and was accepted at `not_before` (ns) or later; it ends
    with `last`, and before the first record accepted later than `not_after` (ns).
    """

    first: int
    not_before: int = 0
    last: int = MAX_SEQUENCE
    not_after: int = NEVER

    @property
    def is_bounded(self) -> bool:
        """Whether there is an end: such a replay is never handed over to live delivery."""
        return self.last != MAX_SEQUENCE or self.not_after != NEVER

    def is_past_end(self, next_sequence: int, newest: int, now: int) -> bool:
        """Whether nothing more can come: `newest` is the newest record there is, delivered or not."""
        return next_sequence > self.last or (now > self.not_after and next_sequence > newest)


class SpanResult(NamedTuple):
    """A span, and what the client must be told about the bookmarks it gave."""

    span: ReplaySpan
    missing: tuple[int, int] | None = None
    """First and last sequence of what was asked for and has been removed."""
    unknown: tuple[Bookmark, ...] = ()
    """Bookmarks that were never in this log."""
    from_now: bool = False
    """Whether nothing of the beginning was known, so that it starts now."""


def find_span(asked: Start | BookmarkRange, log: LogBounds) -> SpanResult:
    """The stretch of the log that a bookmark or a range names.

    A beginning that was never in this log is taken as NOW, and so is an end: the log as it is when asked.
    """
    if not isinstance(asked, BookmarkRange):
        return _begin(asked, None, log)
    found = _begin(asked.begin, asked.begin_included, log)
    span, unknown = _with_end(found.span, asked.end, asked.end_included, log)
    missing = found.missing
    if missing is not None:
        missing = (missing[0], min(missing[1], span.last)) if span.last >= missing[0] else None
    return found._replace(span=span, missing=missing, unknown=found.unknown + unknown)


def depends_on_end(asked: Start | BookmarkRange, log: LogBounds) -> bool:
    """Return whether a span begins or ends where the log ends now: at NOW, or at a bookmark that the log
    doesn't have."""
    return any(
        isinstance(one, Now) or (isinstance(one, AfterBookmarks) and _known(one.bookmarks, log)[1] != ())
        for one in ((asked.begin, asked.end) if isinstance(asked, BookmarkRange) else (asked,))
    )


def _begin(start: Start, included: bool | None, log: LogBounds) -> SpanResult:
    """`included` is what the bracket says; without one, a moment includes itself and a bookmark doesn't."""
    match start:
        case Epoch():
            return SpanResult(ReplaySpan(log.oldest))
        case Now():
            return SpanResult(ReplaySpan(log.newest + 1))
        case AtTime(at):
            return SpanResult(ReplaySpan(log.oldest, not_before=at + 1 if included is False else at))
        case AfterBookmarks(bookmarks):
            here, unknown = _known(bookmarks, log)
            if not here:
                return SpanResult(ReplaySpan(log.newest + 1), unknown=unknown, from_now=True)
            first = max(min(here) + (0 if included else 1), 1)
            if first >= log.oldest:
                return SpanResult(ReplaySpan(first), unknown=unknown)
            return SpanResult(ReplaySpan(log.oldest), (first, log.oldest - 1), unknown)


def _with_end(
    span: ReplaySpan, end: Start, included: bool, log: LogBounds
) -> tuple[ReplaySpan, tuple[Bookmark, ...]]:
    match end:
        case AtTime(at):
            return span._replace(not_after=at if included else at - 1), ()
        case AfterBookmarks(bookmarks):
            here, unknown = _known(bookmarks, log)
            if here:
                return span._replace(last=max(here) - (0 if included else 1)), unknown
            return span._replace(last=log.newest), unknown
        case _:
            return span._replace(last=log.newest), ()


def _known(bookmarks: tuple[Bookmark, ...], log: LogBounds) -> tuple[list[int], tuple[Bookmark, ...]]:
    """The sequences of those that are or were in this log, and the others."""
    unknown = tuple(b for b in bookmarks if b.origin != log.instance or b.sequence > log.newest)
    return [b.sequence for b in bookmarks if b not in unknown], unknown
