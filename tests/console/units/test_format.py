"""Number formats of the pages."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from console.units.format import (
    duration,
    epoch_ms,
    format_result_value,
    humanise_sentence,
    number,
    percent,
    size,
    with_unit,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1536, "1.50 KiB"), (2**40, "1.00 TiB"), (None, "–"), (134_217_728, "128 MiB")],
)
def test_sizes(value: int | None, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (12_345, "12,345"), (1_336_776, "1.34 M"), (None, "–")]
)
def test_counts(value: int | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (12_400, "12.4 s"),
        (185_000, "3 min 05 s"),
        (8_040_000, "2 h 14 min"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_durations(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_shares_keep_a_decimal_where_it_matters() -> None:
    assert [percent(value) for value in (0, 0.4, 50, None)] == ["0 %", "0.4 %", "50 %", "–"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(2048, "bytes", "2.00 KiB"), (1500, "ms", "1.5 s"), (7, "", "7"), (None, "ms", "–")],
)
def test_a_value_with_the_unit_that_was_named(value: int | None, unit: str, text: str) -> None:
    assert with_unit(value, unit) == text


def test_moments_of_any_kind_are_the_same_milliseconds() -> None:
    at = datetime(2026, 11, 21, 14, 30, tzinfo=UTC)
    ms = int(at.timestamp() * 1000)
    assert epoch_ms(at) == epoch_ms(ms) == epoch_ms(ms * 1_000_000) == ms


def test_a_sentence_of_the_broker_names_durations_and_pools_as_people_do() -> None:
    assert humanise_sentence("It took nothing for 885,730 ms.") == "It took nothing for 14 min 45 s."
    assert (
        humanise_sentence("the clients of pool transport:tcp hold 8.0 MiB")
        == "the clients of pool tcp hold 8.0 MiB"
    )
    assert (
        humanise_sentence("the clients of pool instance hold 2.4 GiB")
        == "the clients of the shared pool hold 2.4 GiB"
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "yes"),
        (False, "no"),
        (None, "–"),
        (2_811_904, "2,811,904"),
        (23.1, "23.1"),
        ("now.yaml", "now.yaml"),
        (["a"], '["a"]'),
    ],
)
def test_a_figure_of_a_jobs_result_reads_as_people_write_it(value: object, words: str) -> None:
    assert format_result_value(value) == words
