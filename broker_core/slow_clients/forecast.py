"""Forecasts: for a client the limit it will pass first, how near it is, and when, at the present slope.

Pure. None where there is no honest answer: too few samples, a signal that falls or jumps about, or a time far beyond
what the samples can say anything about.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from broker_core.slow_clients.rules import Action, Mode, Rule, Shape, Signal
from broker_core.slow_clients.signals import Sample

ENOUGH_SAMPLES: Final = 3
STEADY: Final = 0.9
"""The least share of a signal's movement that a straight line must explain."""
FARTHEST: Final = 60
"""A forecast reaches at most so many times as far as the samples do."""


class Forecast(NamedTuple):
    """What is nearest."""

    rule: str
    setting: str
    action: Action
    mode: Mode
    signal: Signal
    value: int
    limit: int
    percent: float
    """Of the limit, used now."""
    per_second: float
    """The slope; 0.0 when it doesn't rise."""
    fires_in_ms: int | None
    """Until the rule acts: to the limit, and the rule's hold; None when there is no honest time."""


def forecast(rules: Iterable[Rule], samples: Sequence[Sample]) -> Forecast | None:
    """The rule that acts first; without any time, the one whose limit is used most. None without anything waiting."""
    found = [made for rule in rules if (made := _of_rule(rule, samples)) is not None]
    if not found:
        return None
    timed = [made for made in found if made.fires_in_ms is not None]
    if timed:
        return min(timed, key=lambda made: (made.fires_in_ms or 0, -made.percent))
    return max(found, key=lambda made: made.percent)


_COLUMNS: Final = {Signal.OUTBOUND_BYTES: 1, Signal.SPOOL_BYTES: 2, Signal.OLDEST_AGE: 3}
"""Which figure of a sample a signal is."""


def _of_rule(rule: Rule, samples: Sequence[Sample]) -> Forecast | None:
    column = _COLUMNS.get(rule.signal)
    if column is None or not samples or rule.per_subscription or rule.limit <= 0:
        return None
    if rule.shape not in (Shape.HARD, Shape.PERCENT_OF, Shape.SOFT_FOR, Shape.SET_CLEAR):
        return None
    points = [(sample.at / 1e9, float(sample[column])) for sample in samples]
    value = samples[-1][column]
    if not value:
        return None
    slope = _slope(points)
    fires = None
    if value > rule.limit:
        fires = 0
    elif slope is not None and slope > 0:
        fires = _within_reach(rule, (rule.limit - value) / slope, points)
    return Forecast(
        rule.name, rule.setting, rule.action, rule.mode, rule.signal, value, rule.limit,
        round(100 * value / rule.limit, 1), round(slope or 0.0, 3) if (slope or 0) > 0 else 0.0, fires,
    )  # fmt: skip


def _within_reach(rule: Rule, seconds: float, points: Sequence[tuple[float, float]]) -> int | None:
    if seconds > FARTHEST * (points[-1][0] - points[0][0]):
        return None
    return round(seconds * 1_000) + rule.hold_ms + rule.ladder[0].after_ms


def _slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least squares over the time since the signal was last 0; None when a line doesn't explain the movement."""
    for place in range(len(points) - 1, -1, -1):
        if points[place][1] == 0:
            points = points[place + 1 :]
            break
    if len(points) < ENOUGH_SAMPLES:
        return None
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    moved = sum((y - mean_y) ** 2 for _, y in points)
    if not spread or not moved:
        return None
    together = sum((x - mean_x) * (y - mean_y) for x, y in points)
    if together * together / (spread * moved) < STEADY:
        return None
    return together / spread
