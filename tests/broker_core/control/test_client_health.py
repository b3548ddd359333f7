"""Health of clients, and estimates of when they have caught up, from recent samples on a manual clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker_core.control.diagnosis import (
    FLAPPING_NS,
    SAMPLES,
    CatchUpEstimate,
    HealthInputs,
    LagHistory,
    LagSample,
    classify_health,
    worst_health,
)
from broker_core.documents.clients import DeliveryState, Health
from broker_core.slow_clients.evaluate.forecast import TOO_FEW
from broker_core.slow_clients.evaluate.why_slow import SlowCause

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("seen", "health"),
    [
        (HealthInputs(0, None), Health.KEEPS_UP),
        (HealthInputs(9, None), Health.UNKNOWN),
        (HealthInputs(9, 9), Health.KEEPS_UP),
        (HealthInputs(12, 9, cause=SlowCause.REPLAYING), Health.FALLING_BEHIND),
        (HealthInputs(3, 9, cause=SlowCause.REPLAYING), Health.KEEPS_UP),
        (HealthInputs(12, 9), Health.KEEPS_UP),
        (HealthInputs(9, 9, cause=SlowCause.READING_SLOWLY), Health.FALLING_BEHIND),
        (HealthInputs(9, None, cause=SlowCause.READING_SLOWLY), Health.UNKNOWN),
        (HealthInputs(8, 9, cause=SlowCause.READING_SLOWLY, draining=True), Health.KEEPS_UP),
        (HealthInputs(12, 9, cause=SlowCause.READING_SLOWLY, draining=True), Health.FALLING_BEHIND),
        (
            HealthInputs(110_000, 101_000, 10_000, cause=SlowCause.READING_SLOWLY, draining=True),
            Health.FALLING_BEHIND,
        ),
        (
            HealthInputs(101_900, 101_000, 10_000, cause=SlowCause.READING_SLOWLY, draining=True),
            Health.KEEPS_UP,
        ),
        (HealthInputs(110_000, 101_000, 10_000, cause=SlowCause.SLOW_ACKS), Health.FALLING_BEHIND),
        (HealthInputs(9, 9, cause=SlowCause.BURST), Health.FALLING_BEHIND),
        (HealthInputs(12, 9, cause=SlowCause.BROKER_BUSY, blocked_ms=2_000), Health.UNKNOWN),
        (HealthInputs(0, None, in_flight=3, unacked=3, cause=SlowCause.BROKER_BUSY), Health.KEEPS_UP),
        (HealthInputs(9, 9, blocked_ms=1_000), Health.FALLING_BEHIND),
        (HealthInputs(9, 9, cause=SlowCause.NOT_READING, blocked_ms=30_000), Health.STALLED),
        (HealthInputs(9, None, window_full_ms=5_000), Health.STALLED),
        (HealthInputs(0, None, in_flight=3, unacked=3, cause=SlowCause.APPLICATION_HANGS), Health.STALLED),
        (HealthInputs(0, None, in_flight=3, cause=SlowCause.APPLICATION_HANGS), Health.KEEPS_UP),
        (HealthInputs(0, None, in_flight=3), Health.KEEPS_UP),
        (HealthInputs(0, None, in_flight=3, blocked_ms=1_000), Health.FALLING_BEHIND),
        (HealthInputs(0, None, in_flight=3, cause=SlowCause.NOT_READING, blocked_ms=9_000), Health.STALLED),
        (HealthInputs(0, None, cause=SlowCause.NOT_READING, blocked_ms=9_000), Health.KEEPS_UP),
        (HealthInputs(99, 9, paced=True, cause=SlowCause.THROTTLED), Health.KEEPS_UP),
        (HealthInputs(99, 9, paced=True, blocked_ms=2_000), Health.FALLING_BEHIND),
        (HealthInputs(99, 9, paused=True, blocked_ms=2_000), Health.PAUSED),
        (HealthInputs(0, None, flapping=True), Health.FLAPPING),
    ],
)
def test_one_word_for_what_was_seen(seen: HealthInputs, health: Health) -> None:
    assert classify_health(seen) is health


def test_a_client_is_as_well_as_its_worst_subscription() -> None:
    assert worst_health([Health.KEEPS_UP, Health.STALLED, Health.PAUSED]) is Health.STALLED
    assert worst_health([]) is Health.KEEPS_UP


def estimated_catch_up(
    lags_seen: Sequence[int], delivery: DeliveryState = DeliveryState.LIVE
) -> CatchUpEstimate:
    lags = LagHistory()
    for second, lag in enumerate(lags_seen):
        lags.add_sample("c", second * SECOND, {"s": LagSample(lag, 0)})
    return lags.estimate_catch_up("c", "s", delivery)


def test_what_shrinks_tells_when_it_is_gone() -> None:
    assert estimated_catch_up([1_000, 900, 800, 700]) == (7.0, "")


def test_what_came_before_it_began_to_shrink_says_nothing_of_its_pace() -> None:
    growing = [1_000, 5_000, 9_000, 13_000]
    assert estimated_catch_up([*growing, 12_500], DeliveryState.DRAINING) == (None, TOO_FEW)
    assert estimated_catch_up([*growing, 12_500, 12_000, 11_500], DeliveryState.DRAINING) == (23.0, "")
    assert estimated_catch_up(growing, DeliveryState.OFFLINED).in_s is None


@pytest.mark.parametrize(
    ("lags_seen", "why"),
    [
        ([], "too few samples"),
        ([500], "too few samples"),
        ([500, 400], "too few samples"),
        ([500, 500, 500], "doesn't get nearer"),
        ([500, 600, 700], "doesn't get nearer"),
        ([500, 400, 500], "doesn't get nearer"),
        ([500, 300, 450, 280, 420], "change linearly"),
        ([10_000, 9_999, 9_998], "too far away"),
    ],
)
def test_where_there_is_no_honest_time_it_is_said_why(lags_seen: list[int], why: str) -> None:
    found = estimated_catch_up(lags_seen)
    assert found.in_s is None and why in found.why_none


def test_only_the_last_seconds_count_and_what_has_caught_up_is_forgotten() -> None:
    lags = LagHistory()
    for second in range(SAMPLES + 5):
        lags.add_sample("c", second * SECOND, {"s": LagSample(10_000 - second, 0), "t": LagSample(5, 0)})
    assert lags.oldest_sample("c", "s") == (10_000 - 5, 0)
    lags.add_sample("c", 99 * SECOND, {"s": LagSample(0, 0), "t": LagSample(5, 0)})
    assert lags.oldest_sample("c", "s") is None and lags.oldest_sample("c", "t") == (5, 0)
    lags.add_sample("c", 100 * SECOND, {})
    assert lags.oldest_sample("c", "t") is None


def test_three_times_offlined_within_ten_minutes_flaps() -> None:
    lags = LagHistory()
    for number in range(3):
        assert not lags.is_flapping("c", number * SECOND)
        lags.on_offlined("c", number * SECOND)
    assert lags.is_flapping("c", 3 * SECOND)
    assert not lags.is_flapping("c", FLAPPING_NS)
    lags.drop_disconnected({})
    assert not lags.is_flapping("c", 3 * SECOND)


def test_a_lag_that_grows_steadily_is_never_called_noise() -> None:
    lags = LagHistory()
    for second in range(1_000):
        lag, matched = 900 * second, 1_000 * second
        lags.add_sample("c", second * SECOND, {"s": LagSample(lag, matched)})
        if (before := lags.oldest_sample("c", "s")) is not None:
            seen = HealthInputs(lag, before.lag, matched - before.matched, cause=SlowCause.REPLAYING)
            assert classify_health(seen) is Health.FALLING_BEHIND
