"""Rates of a client's reads and of arriving messages: current and usual."""

from __future__ import annotations

from broker_core.slow_clients.evaluate.samples import ClientRates, RateMeter
from tests.support.broker_simulation import SECOND, START


def test_a_burst_is_seen_against_what_is_usual() -> None:
    pace, taken, arrived = RateMeter(), 0, 0
    for second in range(60):
        found = pace.update(START + second * SECOND, taken, arrived)
        burst = second >= 54
        taken, arrived = taken + 1_000, arrived + (50_000 if burst else 1_000)
    assert found.taken == 1_000 == found.usually_taken and found.usually_arriving <= 1_000
    assert found.arriving > 25_000


def test_lumps_are_evened_out_over_the_minute() -> None:
    pace = RateMeter()
    found = [
        pace.update(START + second * SECOND, second // 20 * 200_000, second * 10_000) for second in range(120)
    ]
    assert all(6_000 <= one.taken <= 14_000 for one in found[60:])


def test_nothing_is_known_at_first_nor_when_the_clock_goes_back() -> None:
    pace = RateMeter()
    assert pace.update(START, 5, 5) == ClientRates()
    assert pace.update(START - SECOND, 5, 5) == ClientRates()
    assert pace.update(START + SECOND, 105, 205) == ClientRates(100, 200, 0, 0, 1_000)


def test_however_often_one_looks_it_remembers_a_minute() -> None:
    pace = RateMeter()
    for part in range(4_000):
        pace.update(START + part * SECOND // 10, part, part)
    assert len(pace._looks) == 13
