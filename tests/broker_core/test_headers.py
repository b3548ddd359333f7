"""Escapes in headers: escaping round-trips, and an invalid escape of the version is refused by its
character.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.headers import escape, unescape


@given(st.text("\\nrc:\n\r"))
def test_what_is_escaped_reads_back(text: str) -> None:
    assert unescape(escape(text)) == text


@given(st.text("\\ncrx", max_size=12), st.sampled_from(["nc\\", "nrc\\"]))
def test_an_escape_is_a_backslash_with_one_of_the_known_signs(text: str, known: str) -> None:
    made, rest, bad = "", text, False
    while rest and not bad:
        if rest[0] != "\\":
            made, rest = made + rest[0], rest[1:]
        elif len(rest) > 1 and rest[1] in known:
            made, rest = made + {"n": "\n", "r": "\r", "c": ":", "\\": "\\"}[rest[1]], rest[2:]
        else:
            bad = True
    if bad:
        with pytest.raises(ValueError, match=r"^\\"):
            unescape(text, known)
    else:
        assert unescape(text, known) == made
