"""Where a replay begins and ends, decided from the bookmark a client gave and what the log holds. Pure.

    begin   a sequence, or the first record accepted at or after a moment, also one that is still to come
    end     a sequence, or a moment; without an end the replay goes over into live delivery

All records of a batch were accepted at the same time, so a moment never divides a batch.
"""

from __future__ import annotations

from typing import NamedTuple

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

NEVER = 2**63 - 1
"""A time that doesn't come, in ns."""


class Log(NamedTuple):
    """What the log holds: records `oldest` to `newest` that this instance accepted. newest = oldest - 1: none."""

    instance: str
    oldest: int
    newest: int


class Span(NamedTuple):
    """A stretch of the log.

    It begins with the first record that is `first` or later and was accepted at `not_before` (ns) or later; it ends
    with `last`, and before the first record accepted later than `not_after` (ns).
    """

    first: int
    not_before: int = 0
    last: int = MAX_SEQUENCE
    not_after: int = NEVER

    @property
    def ends(self) -> bool:
        """Whether there is an end: such a replay is never handed over to live delivery."""
        return self.last != MAX_SEQUENCE or self.not_after != NEVER

    def over(self, next_sequence: int, newest: int, now: int) -> bool:
        """Whether nothing more can come: `newest` is the newest record there is, delivered or not."""
        return next_sequence > self.last or (now > self.not_after and next_sequence > newest)


class Found(NamedTuple):
    """A span, and what the client must be told about the bookmarks it gave."""

    span: Span
    missing: tuple[int, int] | None = None
    """First and last sequence of what was asked for and has been removed."""
    unknown: tuple[Bookmark, ...] = ()
    """Bookmarks that were never in this log."""
    from_now: bool = False
    """Whether nothing of the beginning was known, so that it starts now."""


def find_span(asked: Start | BookmarkRange, log: Log) -> Found:
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


def depends_on_end(asked: Start | BookmarkRange, log: Log) -> bool:
    """Return whether a span begins or ends where the log ends now: at NOW, or at a bookmark that the log
    doesn't have."""
    return any(
        isinstance(one, Now) or (isinstance(one, AfterBookmarks) and _known(one.bookmarks, log)[1] != ())
        for one in ((asked.begin, asked.end) if isinstance(asked, BookmarkRange) else (asked,))
    )


def _begin(start: Start, included: bool | None, log: Log) -> Found:
    """`included` is what the bracket says; without one, a moment includes itself and a bookmark doesn't."""
    match start:
        case Epoch():
            return Found(Span(log.oldest))
        case Now():
            return Found(Span(log.newest + 1))
        case AtTime(at):
            return Found(Span(log.oldest, not_before=at + 1 if included is False else at))
        case AfterBookmarks(bookmarks):
            here, unknown = _known(bookmarks, log)
            if not here:
                return Found(Span(log.newest + 1), unknown=unknown, from_now=True)
            first = max(min(here) + (0 if included else 1), 1)
            if first >= log.oldest:
                return Found(Span(first), unknown=unknown)
            return Found(Span(log.oldest), (first, log.oldest - 1), unknown)


def _with_end(span: Span, end: Start, included: bool, log: Log) -> tuple[Span, tuple[Bookmark, ...]]:
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


def _known(bookmarks: tuple[Bookmark, ...], log: Log) -> tuple[list[int], tuple[Bookmark, ...]]:
    """The sequences of those that are or were in this log, and the others."""
    unknown = tuple(b for b in bookmarks if b.origin != log.instance or b.sequence > log.newest)
    return [b.sequence for b in bookmarks if b not in unknown], unknown
