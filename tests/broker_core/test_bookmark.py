"""Bookmarks: every text form, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.bookmark import After, Bookmark, Epoch, Moment, Now, parse_bookmark
from broker_core.errors import ClientError

NAMES = st.text("abcXYZ019_.-", min_size=1, max_size=64)


@given(NAMES, st.integers(0, 2**63 - 1))
def test_a_bookmark_survives_its_text(name: str, sequence: int) -> None:
    assert parse_bookmark(str(Bookmark(name, sequence))) in (After((Bookmark(name, sequence),)), Now())


def test_epoch_and_now_have_their_own_words() -> None:
    assert parse_bookmark("0") == Epoch()
    assert parse_bookmark("0|1|") == Now()


def test_a_moment_is_utc_with_or_without_z_and_fractions() -> None:
    assert parse_bookmark("20261121T134500Z") == Moment(1_795_268_700 * 10**9)
    assert parse_bookmark("20261121T134500") == Moment(1_795_268_700 * 10**9)
    assert parse_bookmark("20261121T134500.25Z") == Moment(1_795_268_700 * 10**9 + 250_000_000)


def test_a_list_resumes_per_origin() -> None:
    assert parse_bookmark("a|1|,b|2|") == After((Bookmark("a", 1), Bookmark("b", 2)))


@pytest.mark.parametrize(
    "text", ["", "yesterday", "a|b|", "a|1", "|1|", "a|-1|", "a|1|,a|2|", "a|9223372036854775808|", "20261321T000000", "a b|1|", "²|1|"]
)
def test_what_is_no_bookmark_is_refused_with_a_fix(text: str) -> None:
    with pytest.raises(ClientError) as caught:
        parse_bookmark(text)
    assert caught.value.code == "bad_bookmark"
    assert caught.value.fix
