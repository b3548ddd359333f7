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
    assert found.read_rate == 1_000 == found.usual_read_rate and found.usual_arrival_rate <= 1_000
    assert found.arrival_rate > 25_000


def test_lumps_are_evened_out_over_the_minute() -> None:
    pace = RateMeter()
    found = [
        pace.update(START + second * SECOND, second // 20 * 200_000, second * 10_000) for second in range(120)
    ]
    assert all(6_000 <= one.read_rate <= 14_000 for one in found[60:])


def test_nothing_is_known_at_first() -> None:
    pace = RateMeter()
    assert pace.update(START, 5, 5) == ClientRates()
    assert pace.update(START, 5, 5) == ClientRates()
    assert pace.update(START + SECOND, 105, 205) == ClientRates(100, 200, 0, 0, 1_000)


def test_two_updates_at_one_time_return_the_same_rates() -> None:
    pace = RateMeter()
    for second in range(0, 20, 5):
        found = pace.update(START + second * SECOND, second * 100, second * 200)
        assert pace.update(START + second * SECOND, second * 100, second * 200) == found
    assert found.read_rate == 100 and found.arrival_rate == 200


def test_however_often_one_looks_it_remembers_a_minute() -> None:
    pace = RateMeter()
    for part in range(4_000):
        pace.update(START + part * SECOND // 10, part, part)
    assert len(pace._totals) == 13
