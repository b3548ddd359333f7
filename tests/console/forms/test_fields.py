"""Parsing of sizes and intervals that operators type."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from console.forms.fields import IntervalField, SizeField


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1073741824", 2**30),
        ("512MiB", 512 * 2**20),
        ("2GB", 2 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("1k", 1024),
        ("", None),
    ],
)
def test_a_size_is_read(text: str, nbytes: int | None) -> None:
    assert SizeField(required=False).clean(text) == nbytes


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (10**7, "10MB"),
        (2**30, "1GiB"),
        (1_500, "1500"),
        (2_000, "2KB"),
        (1_024_000, "1000KiB"),
        (0, "0"),
    ],
)
def test_a_size_is_shown_in_the_largest_unit_that_is_exact(nbytes: int, text: str) -> None:
    assert SizeField().prepare_value(nbytes) == text


@pytest.mark.parametrize(
    ("text", "ms"), [("30s", 30_000), ("1h", 3_600_000), ("250ms", 250), ("10 min", 600_000), ("", None)]
)
def test_an_interval_is_read(text: str, ms: int | None) -> None:
    assert IntervalField(required=False).clean(text) == ms


@pytest.mark.parametrize("text", ["lots", "12 parsecs", "-5MiB", "1.2.3MB", "MiB", "0x10", ".", "9" * 400])
def test_what_isnt_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        SizeField().clean(text)


def test_an_interval_without_its_unit_is_in_seconds() -> None:
    assert IntervalField().clean("30") == 30_000
    assert IntervalField().clean("1.5") == 1_500
    with pytest.raises(ValidationError):
        IntervalField().clean("30 parsecs")


@given(st.integers(min_value=1, max_value=2**53))
def test_a_size_that_is_shown_and_saved_again_is_the_same(nbytes: int) -> None:
    field = SizeField()
    assert field.clean(field.prepare_value(nbytes)) == nbytes


@given(st.integers(min_value=1, max_value=2**53))
def test_an_interval_that_is_shown_and_saved_again_is_the_same(ms: int) -> None:
    field = IntervalField()
    assert field.clean(field.prepare_value(ms)) == ms
