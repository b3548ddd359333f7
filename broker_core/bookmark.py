"""Bookmarks: the identity and position of a record, and the positions from which a replay can start.

Text forms, as clients send and receive them (terms of AMPS, seed 002):

    0                        EPOCH: the oldest record of the log
    0|1|                     NOW: only records that are accepted later
    <origin>|<sequence>|     after the record with number <sequence> that the instance <origin> accepted
    20261121T134500[.f][Z]   a time in UTC, with up to nine decimals: from the first record accepted at or
    after it
    several, with commas     resumes exactly, per origin; for one origin the oldest counts
    [a:b] (a:b) [a:b) (a:b]  a range of any of these: from a to b; "[" and "]" include the end
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from broker_core.errors import ClientError
from broker_core.names import is_name

EPOCH_TEXT = "0"
NOW_TEXT = "0|1|"
MAX_SEQUENCE = 2**63 - 1
_NS_DIGITS = 9
MAX_BOOKMARK_TEXT = 4_096
"""Maximum characters of a bookmark or a list of bookmarks."""


class Bookmark(NamedTuple):
    """Identity of a record: the instance that accepted it, and its number there."""

    origin: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.origin}|{self.sequence}|"


class Epoch(NamedTuple):
    """Start at the oldest record of the log."""


class Now(NamedTuple):
    """Start at the end of the log: only new records."""


class AfterBookmarks(NamedTuple):
    """Start after these records, of one origin or of several."""

    bookmarks: tuple[Bookmark, ...]


class AtTime(NamedTuple):
    """Start at the first record accepted at or after this time, in ns UTC."""

    at: int


Start = Epoch | Now | AfterBookmarks | AtTime


class BookmarkRange(NamedTuple):
    """Range from one position to another.

    A list of bookmarks begins at its oldest record and ends at its newest.
    """

    begin: Start
    begin_included: bool
    end: Start
    end_included: bool


def parse_bookmark(text: str) -> Start | BookmarkRange:
    """Parse the text of a bookmark or a range.

    Raises:
        ClientError: `bad_bookmark`, with the reason.
    """
    if len(text) > MAX_BOOKMARK_TEXT:
        raise _bad_bookmark_error(text[:40], f"it is longer than {MAX_BOOKMARK_TEXT} characters")
    return _parse_range(text) if text[:1] in ("[", "(") else _parse_start(text)


def _parse_range(text: str) -> BookmarkRange:
    begin, colon, end = text[1:-1].partition(":")
    if text[-1] not in "])" or not colon:
        raise _bad_bookmark_error(text, "a range is [a:b], (a:b), [a:b) or (a:b]")
    found = BookmarkRange(
        _parse_start(begin.strip()), text[0] == "[", _parse_start(end.strip()), text[-1] == "]"
    )
    match found:
        case BookmarkRange(AtTime(first), _, AtTime(last), _) if last < first:
            raise _bad_bookmark_error(text, "it ends before it begins")
        case BookmarkRange(AfterBookmarks(first), _, AfterBookmarks(last), _) if _are_older(last, first):
            raise _bad_bookmark_error(text, "it ends before it begins")
        case BookmarkRange(Now(), _, AfterBookmarks(), _):
            raise _bad_bookmark_error(text, "it begins now, and ends at an earlier record")
        case BookmarkRange(end=Epoch()):
            raise _bad_bookmark_error(text, "there is nothing before the start of the log")
    return found


def _are_older(these: tuple[Bookmark, ...], those: tuple[Bookmark, ...]) -> bool:
    """Return whether all of `these` bookmarks are older than all of `those`; False for several origins."""
    origins = {one.origin for one in (*these, *those)}
    return len(origins) == 1 and max(one.sequence for one in these) < min(one.sequence for one in those)


def _parse_start(text: str) -> Start:
    if text == EPOCH_TEXT:
        return Epoch()
    if text == NOW_TEXT:
        return Now()
    if "|" not in text:
        return AtTime(_parse_moment(text))
    return AfterBookmarks(tuple(_parse_bookmark(part) for part in text.split(",")))


def _parse_bookmark(text: str) -> Bookmark:
    parts = text.strip().split("|")
    if len(parts) != 3 or parts[2] != "" or not is_name(parts[0]):
        raise _bad_bookmark_error(text, "it isn't <origin>|<sequence>|")
    if not (parts[1].isascii() and parts[1].isdigit()) or len(parts[1]) > 19 or int(parts[1]) > MAX_SEQUENCE:
        raise _bad_bookmark_error(text, "its sequence isn't a number up to 2^63 - 1")
    return Bookmark(parts[0], int(parts[1]))


def _parse_moment(text: str) -> int:
    seconds, point, fraction = text.removesuffix("Z").partition(".")
    try:
        moment = datetime.strptime(seconds, "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
        if point and not (fraction.isascii() and fraction.isdigit() and len(fraction) <= _NS_DIGITS):
            raise ValueError
    except ValueError:
        raise _bad_bookmark_error(text, "it isn't a moment like 20261121T134500Z") from None
    nanoseconds: int = 10**_NS_DIGITS
    return int(moment.timestamp()) * nanoseconds + int(fraction.ljust(_NS_DIGITS, "0"))


def format_moment(at: int) -> str:
    """Return a time in ns UTC as a bookmark, with all nanoseconds.

    The range `[T:T]` finds the records that were accepted at that time.
    """
    seconds, nanoseconds = divmod(at, 10**_NS_DIGITS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}.{nanoseconds:0{_NS_DIGITS}}Z"


def format_bookmark(requested: Start | BookmarkRange) -> str:
    """Return the text of a start or a range, as `parse_bookmark` reads it."""
    match requested:
        case Epoch():
            return EPOCH_TEXT
        case Now():
            return NOW_TEXT
        case AtTime(at):
            return format_moment(at)
        case AfterBookmarks(bookmarks):
            return ",".join(map(str, bookmarks))
        case BookmarkRange(begin, begin_included, end, end_included):
            brackets = "[" if begin_included else "(", "]" if end_included else ")"
            return f"{brackets[0]}{format_bookmark(begin)}:{format_bookmark(end)}{brackets[1]}"


def _bad_bookmark_error(text: str, reason: str) -> ClientError:
    return ClientError(
        "bad_bookmark",
        f"{text[:80]!r} isn't a bookmark: {reason}.",
        "Use 0 (the start), 0|1| (now), a bookmark from a message, a moment like 20261121T134500Z, "
        "or a range [a:b).",
    )


def bookmark_sequence(text: str, instance: str) -> int | None:
    """Return the sequence in the log of `instance` that a bookmark follows, or None if it names none.

    Raises:
        ClientError: `bad_bookmark`.
    """
    start = parse_bookmark(text)
    known = start.bookmarks if isinstance(start, AfterBookmarks) else ()
    return next((one.sequence for one in known if one.origin == instance), None)
