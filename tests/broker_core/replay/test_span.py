"""Bounds of replays: a range filters the log by position, a list is the union of its bookmarks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.bookmark import (
    AfterBookmarks,
    AtTime,
    Bookmark,
    BookmarkRange,
    Epoch,
    Now,
    Start,
    parse_bookmark,
)
from broker_core.journal.removal_records import RemovalRecord, RemovedInterval, removed_intervals
from broker_core.replay.span import NEVER, LogBounds, ReplaySpan, find_span

HERE = "here"


@dataclass
class LogModel:
    """A log in memory: (sequence, accepted at) of every record, and the oldest record retained."""

    records: list[tuple[int, int]]
    oldest: int

    @property
    def log(self) -> LogBounds:
        return LogBounds(HERE, self.oldest, len(self.records))

    def retained(self) -> list[tuple[int, int]]:
        return [record for record in self.records if record[0] >= self.oldest]

    def replay(self, span: ReplaySpan) -> list[int]:
        """Return the sequences that a replay of this span delivers; each batch has one record."""
        found: list[int] = []
        begun = False
        for sequence, at in self.retained():
            if sequence < span.first:
                continue
            if at > span.not_after or sequence > span.last:
                break
            begun = begun or at >= span.not_before
            if begun:
                found.append(sequence)
        return found


@st.composite
def wholes(draw: st.DrawFn) -> LogModel:
    steps = draw(st.lists(st.integers(0, 3), max_size=12))
    times = [1_000 + sum(steps[: number + 1]) for number in range(len(steps))]
    return LogModel(list(enumerate(times, 1)), draw(st.integers(1, len(steps) + 1)))


sequences = st.integers(0, 12).map(lambda sequence: Bookmark(HERE, sequence))
lists = st.lists(sequences, min_size=1, max_size=4).map(lambda found: AfterBookmarks(tuple(found)))
moments = st.integers(998, 1_040).map(AtTime)


@given(wholes(), lists)
def test_a_list_of_bookmarks_is_the_union_of_what_follows_each_without_repeats(
    whole: LogModel, asked: AfterBookmarks
) -> None:
    known = [bookmark for bookmark in asked.bookmarks if bookmark.sequence <= len(whole.records)]
    union = {
        sequence for bookmark in known for sequence, _ in whole.retained() if sequence > bookmark.sequence
    }
    assert whole.replay(find_span(asked, whole.log).span) == sorted(union)


@given(wholes(), st.one_of(lists, moments), st.one_of(lists, moments), st.booleans(), st.booleans())
def test_a_range_is_the_whole_filtered_by_position(
    whole: LogModel, begin: Start, end: Start, begin_included: bool, end_included: bool
) -> None:
    def at_or_after(record: tuple[int, int]) -> bool:
        match begin:
            case AtTime(at):
                return record[1] >= at if begin_included else record[1] > at
            case AfterBookmarks(bookmarks):
                known = [b.sequence for b in bookmarks if b.sequence <= len(whole.records)]
                return bool(known) and (record[0] >= min(known) if begin_included else record[0] > min(known))
        raise AssertionError

    def at_or_before(record: tuple[int, int]) -> bool:
        match end:
            case AtTime(at):
                return record[1] <= at if end_included else record[1] < at
            case AfterBookmarks(bookmarks):
                known = [b.sequence for b in bookmarks if b.sequence <= len(whole.records)]
                return not known or (record[0] <= max(known) if end_included else record[0] < max(known))
        raise AssertionError

    span = find_span(BookmarkRange(begin, begin_included, end, end_included), whole.log).span
    assert span.is_bounded
    assert whole.replay(span) == [
        record[0] for record in whole.retained() if at_or_after(record) and at_or_before(record)
    ]


@given(wholes(), lists)
def test_what_was_removed_is_the_exact_interval_between_the_bookmark_and_the_oldest_record(
    whole: LogModel, asked: AfterBookmarks
) -> None:
    found = find_span(asked, whole.log)
    known = [bookmark.sequence for bookmark in asked.bookmarks if bookmark.sequence <= len(whole.records)]
    removed = range(min(known, default=12) + 1, whole.oldest)
    assert found.missing == ((removed[0], removed[-1]) if removed else None)


@given(wholes(), moments, st.one_of(st.none(), moments), st.lists(st.integers(1, 12), max_size=4))
def test_every_removed_record_of_a_span_from_a_moment_is_in_the_interval_that_is_named(
    whole: LogModel, begin: AtTime, end: AtTime | None, cuts: list[int]
) -> None:
    removed = [record for record in whole.records if record[0] < whole.oldest]
    firsts = sorted({1, *(cut for cut in cuts if cut < whole.oldest)})
    receipts = []
    for first, following in pairwise([*firsts, whole.oldest]):
        ats = [at for sequence, at in removed if first <= sequence < following]
        if ats:
            receipts.append(RemovalRecord(first, following - 1, len(ats), 1, 1, ats[0], ats[-1], 5_000))
    oldest_at = next((at for _, at in whole.retained()), 1_040)
    log = whole.log._replace(removed=removed_intervals(receipts, whole.oldest, oldest_at))
    found = find_span(BookmarkRange(begin, True, end, True) if end is not None else begin, log)
    wanted = [sequence for sequence, at in removed if at >= begin.at and (end is None or at <= end.at)]
    lost = range(found.missing[0], found.missing[1] + 1) if found.missing is not None else range(0)
    assert set(wanted) <= set(lost)
    if found.missing is not None:
        assert found.missing[1] < whole.oldest
        assert begin.at <= removed[-1][1], "a gap although everything removed is older than the moment"


def test_an_interval_without_a_receipt_may_belong_to_any_moment_between_its_neighbours() -> None:
    receipt = RemovalRecord(11, 20, 10, 1, 1, 1_000, 2_000, 5_000)
    assert removed_intervals([receipt], 31, 3_000) == [
        RemovedInterval(1, 10, 0, 999),
        RemovedInterval(11, 20, 1_000, 2_000),
        RemovedInterval(21, 30, 2_000, 2_999),
    ]
    assert removed_intervals([receipt], 16, 1_500)[-1] == RemovedInterval(11, 15, 1_000, 2_000), "a crash"
    assert removed_intervals([], 1, 1_000) == []


LOG = LogBounds(HERE, 11, 20)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("0", 11, None),
        ("0|1|", 21, None),
        ("here|15|", 16, None),
        ("here|20|", 21, None),
        ("[here|15|:here|18|]", 15, 18),
        ("(here|15|:here|18|)", 16, 17),
        ("[0:0|1|]", 11, 20),
        ("[here|17|,here|15|:here|16|,here|18|]", 15, 18),
    ],
)
def test_points_of_the_log_are_found(text: str, first: int, last: int | None) -> None:
    found = find_span(parse_bookmark(text), LOG)
    assert (found.span.first, found.span.last if found.span.is_bounded else None) == (first, last)
    assert (found.missing, found.unknown) == (None, ())


def test_a_bookmark_of_another_instance_starts_now_and_is_named() -> None:
    found = find_span(parse_bookmark("there|5|"), LOG)
    assert (found.span, found.unknown, found.from_now) == (ReplaySpan(21), (Bookmark("there", 5),), True)


def test_a_bookmark_that_is_yet_to_come_was_never_here() -> None:
    assert find_span(parse_bookmark("here|21|"), LOG).from_now


def test_a_list_from_two_instances_resumes_at_the_one_this_log_knows_and_names_the_other() -> None:
    found = find_span(parse_bookmark("there|5|,here|15|"), LOG)
    assert (found.span, found.unknown, found.from_now) == (ReplaySpan(16), (Bookmark("there", 5),), False)


def test_an_end_that_was_never_here_is_the_log_as_it_is_now() -> None:
    found = find_span(parse_bookmark("[here|15|:there|5|]"), LOG)
    assert (found.span, found.unknown) == (ReplaySpan(15, last=20), (Bookmark("there", 5),))


def test_a_range_that_was_removed_as_a_whole_misses_no_more_than_itself() -> None:
    found = find_span(parse_bookmark("[here|3|:here|6|]"), LOG)
    assert found.missing == (3, 6)
    assert found.span.is_past_end(found.span.first, 20, 0)


def test_a_span_is_over_behind_its_last_record_or_when_its_time_has_passed_and_nothing_is_under_way() -> None:
    assert ReplaySpan(1, last=5).is_past_end(6, 100, 0)
    assert not ReplaySpan(1, last=5).is_past_end(5, 100, NEVER)
    assert ReplaySpan(1, not_after=1_000).is_past_end(21, 20, 1_001)
    assert not ReplaySpan(1, not_after=1_000).is_past_end(20, 20, 1_001), (
        "a record was stamped in time and isn't delivered yet"
    )
    assert not ReplaySpan(1, not_after=1_000).is_past_end(21, 20, 1_000)


def test_now_and_epoch_have_no_end() -> None:
    assert not any(find_span(start, LOG).span.is_bounded for start in (Now(), Epoch(), AtTime(5)))
