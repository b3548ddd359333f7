"""Bookmarks: every text form, and invalid texts."""

from __future__ import annotations

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
    format_moment,
    parse_bookmark,
)
from broker_core.errors import ClientError
from broker_core.names import is_name

NAMES = st.text("abcXYZ019_.-", min_size=1, max_size=64).filter(is_name)


@given(NAMES, st.integers(0, 2**63 - 1))
def test_a_bookmark_survives_its_text(name: str, sequence: int) -> None:
    assert parse_bookmark(str(Bookmark(name, sequence))) in (
        AfterBookmarks((Bookmark(name, sequence),)),
        Now(),
    )


def test_epoch_and_now_have_their_own_words() -> None:
    assert parse_bookmark("0") == Epoch()
    assert parse_bookmark("0|1|") == Now()


def test_a_moment_is_utc_with_or_without_z_and_fractions() -> None:
    assert parse_bookmark("20261121T134500Z") == AtTime(1_795_268_700 * 10**9)
    assert parse_bookmark("20261121T134500") == AtTime(1_795_268_700 * 10**9)
    assert parse_bookmark("20261121T134500.25Z") == AtTime(1_795_268_700 * 10**9 + 250_000_000)


def test_a_list_resumes_per_origin() -> None:
    assert parse_bookmark("a|1|,b|2|") == AfterBookmarks((Bookmark("a", 1), Bookmark("b", 2)))


NOON, ONE = AtTime(1_795_262_400 * 10**9), AtTime(1_795_266_000 * 10**9)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[20261121T120000:20261121T130000)", BookmarkRange(NOON, True, ONE, False)),
        ("(20261121T120000Z:20261121T130000Z]", BookmarkRange(NOON, False, ONE, True)),
        (
            "(a|1|:a|9|)",
            BookmarkRange(
                AfterBookmarks((Bookmark("a", 1),)), False, AfterBookmarks((Bookmark("a", 9),)), False
            ),
        ),
        (
            "[a|1|,b|2|:20261121T130000]",
            BookmarkRange(AfterBookmarks((Bookmark("a", 1), Bookmark("b", 2))), True, ONE, True),
        ),
        ("[0:0|1|]", BookmarkRange(Epoch(), True, Now(), True)),
        ("[0 : a|1|]", BookmarkRange(Epoch(), True, AfterBookmarks((Bookmark("a", 1),)), True)),
    ],
)
def test_a_range_has_two_points_and_says_by_its_brackets_whether_they_belong_to_it(
    text: str, found: BookmarkRange
) -> None:
    assert parse_bookmark(text) == found


@given(st.integers(0, 4 * 10**18))
def test_a_moment_survives_its_text_to_the_nanosecond(at: int) -> None:
    assert parse_bookmark(format_moment(at)) == AtTime(at)
    assert parse_bookmark(f"[{format_moment(at)}:{format_moment(at)}]") == BookmarkRange(
        AtTime(at), True, AtTime(at), True
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "a|b|",
        "a|1",
        "|1|",
        "a|-1|",
        "a|9223372036854775808|",
        "20261321T000000",
        "a b|1|",
        "²|1|",
        "[",
        "[a|1|",
        "[a|1|:a|2|",
        "[a|1|a|2|]",
        "[:a|2|]",
        "[a|1|:]",
        "[a|1|:a|2|:a|3|]",
        "{a|1|:a|2|}",
        "[0:0]",
        "[20260102T000000:20260101T000000]",
        "[[0:a|1|]]",
        "[20260101:20260102)",
    ],
)
def test_what_is_no_bookmark_is_refused_with_a_fix(text: str) -> None:
    with pytest.raises(ClientError) as caught:
        parse_bookmark(text)
    assert caught.value.code == "bad_bookmark"
    assert caught.value.fix
