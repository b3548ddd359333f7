from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.errors import OperatorError
from console.units.ages import MAX_AGE_S, format_age, parse_age


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7d", 604_800),
        ("1h30m", 5_400),
        ("45s", 45),
        ("90", 90),
        (90, 90),
        ("1w 2d", 777_600),
        ("0", 0),
        ("2H", 7_200),
    ],
)
def test_age_as_operators_write_it(text: str | int, seconds: int) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "d", "7x", "30m1h", "1h1h", "-1", "1.5h", "7d3", "²d", "101w999999999999w", True, None, "9" * 40],
)
def test_what_is_not_an_age_is_refused(text: object) -> None:
    with pytest.raises(OperatorError) as refused:
        parse_age(text)  # type: ignore[arg-type]
    assert refused.value.code == "bad_age"


@given(st.integers(0, MAX_AGE_S))
def test_formatting_an_age_loses_nothing(seconds: int) -> None:
    assert parse_age(format_age(seconds)) == seconds
