"""Sizes and intervals: read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.errors import ClientError
from broker_core.quantities import (
    BYTES,
    MAX_INTERVAL_NS,
    NANOSECONDS,
    NS_PER_MS,
    format_interval,
    format_size,
    parse_client_interval,
    parse_interval,
    parse_size,
    split_unit,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1073741824", 2**30),
        ("512MiB", 512 * 2**20),
        ("2GB", 2 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("1k", 1_024),
        ("10 tb", 10**13),
        (" .5KB ", 500),
        ("1,500", 1_500),
        ("1,234,567B", 1_234_567),
        ("0", 0),
    ],
)
def test_a_size_is_a_number_and_a_unit(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("1s", 1_000),
        ("1.5m", 90_000),
        ("10min", 600_000),
        ("2H", 7_200_000),
        ("1w", 604_800_000),
    ],
)
def test_an_interval_has_a_unit(text: str, ms: int) -> None:
    assert parse_interval(text) == ms * NS_PER_MS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GB",
        "-1",
        "+1",
        "1e3",
        "1.2.3",
        ".",
        "1 2",
        "٣",
        "²",
        "1,5GB",
        "1,50",
        ",500",
        "1,2345",
        "1_000",
        "inf",
        "nan",
        "9" * 19,
        "10XB",
        "1 s b",
    ],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize("text", ["30", "", "1y", "s", "1GB", "1h30m"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_interval(text)


@pytest.mark.parametrize("text", ["0.9ms", "0s", "24.1h", "2d", "30", "soon", "9" * 40 + "s"])
def test_a_client_may_ask_for_a_millisecond_to_a_day(text: str) -> None:
    with pytest.raises(ClientError) as refused:
        parse_client_interval(text, "conflation")
    assert (refused.value.code, refused.value.details) == ("bad_interval", {"field": "conflation"})
    assert [parse_client_interval(edge, "x") for edge in ("1ms", "24h", "1d")] == [
        NS_PER_MS,
        MAX_INTERVAL_NS,
        MAX_INTERVAL_NS,
    ]


@given(st.integers(0, 10**18 - 1))
def test_what_is_written_reads_back(value: int) -> None:
    assert parse_size(format_size(value)) == value
    ms = value % 10**17
    assert parse_interval(format_interval(ms * NS_PER_MS)) == ms * NS_PER_MS


@given(st.text(max_size=12) | st.text("0123456789.,kmgtibshwd ", max_size=12))
def test_any_text_is_a_number_and_a_unit_or_refused(text: str) -> None:
    try:
        number, unit = split_unit(text)
    except ValueError:
        return
    assert number >= 0 and (unit == "" or (unit.isascii() and unit.isalpha() and unit.islower()))


def test_units_are_written_small() -> None:
    assert all(unit == unit.lower() for unit in (*BYTES, *NANOSECONDS))
