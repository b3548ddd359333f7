"""Forecasts: how near each rule is to acting on a client, and when it acts if the trend continues.

Pure. A forecast without a reliable time has a reason instead. There may be too few samples, or a signal that
falls or does not follow a line. The time may be too far ahead for the samples, or another client may be
chosen first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from broker_core.config.rule_terms import EnforcementMode, PolicyAction, Shape
from broker_core.documents.clients import ForecastEntry
from broker_core.slow_clients.evaluate.rule_state import (
    NO_STATE,
    NOT_APPLICABLE,
    REPEAT_REQUEST_MS,
    REPEATED_RUNG_ACTIONS,
    RuleState,
    is_time_driven,
)
from broker_core.slow_clients.evaluate.signal_table import READINGS
from broker_core.slow_clients.rules.rule import TICK_MS, Rule

MIN_TREND_SAMPLES: Final = 3
"""Minimum number of samples for a trend."""
MIN_FIT: Final = 0.9
"""Minimum coefficient of determination (r²) of a straight line through the samples."""
MAX_HORIZON_FACTOR: Final = 60
"""Maximum forecast horizon, as a multiple of the time that the samples cover."""
MAX_PERCENT: Final = 1_000.0
"""Maximum of `percent` for a rate below its limit: for a rate near 0 the ratio has no bound."""
_MS: Final = 1_000_000

Points = Sequence[tuple[int, int]]
"""(time in ns, value) pairs that a rule measured, oldest first; the last one is of now."""


class ForecastInput(NamedTuple):
    """Value, state and history of a rule for one client, subscription or pool."""

    rule: Rule
    value: int
    state: RuleState = NO_STATE
    points: Points = ()
    subscription: str = ""
    exemption: str = ""
    """Reason why the rule never acts on this client: it is protected, or another one is chosen first."""


def find_first_to_act(forecasts: Iterable[ForecastEntry]) -> ForecastEntry | None:
    """Return the forecast of the rule that acts first; None when no rule's limit is used at all.

    Without any time, the forecast with the highest percentage is returned.
    """
    used = [one for one in forecasts if one.percent > 0]
    timed = [one for one in used if one.fires_in_ms is not None]
    if timed:
        return min(timed, key=lambda one: (one.fires_in_ms or 0, -one.percent))
    return max(used, key=lambda one: one.percent, default=None)


def forecast_rule(inputs: ForecastInput, now_ns: int) -> ForecastEntry:
    """Return the forecast of one rule."""
    rule, state = inputs.rule, inputs.state
    counted = rule.shape is Shape.COUNT_IN_WINDOW
    value, limit = (len(state.marks), rule.count) if counted else (max(inputs.value, 0), rule.limit)
    fires, per_second, reason = _forecast_crossing(inputs, now_ns)
    if inputs.exemption and fires is not None:
        fires, reason = None, inputs.exemption
    if fires is not None and not state.done and state.acted_at:
        fires = max(fires, rule.cooldown_ms - (now_ns - state.acted_at) // _MS)
    rung = rule.ladder[min(state.done, len(rule.ladder) - 1)]
    return ForecastEntry(
        rule=rule.name,
        setting=rule.setting,
        action=rung.action.value,
        mode=rule.mode.value,
        signal=rule.signal.value,
        value=value,
        limit=limit,
        percent=_percent(rule, value, limit, inputs.value),
        per_second=round(per_second, 3),
        fires_in_ms=fires,
        why_none="" if fires is not None else reason,
        subscription=inputs.subscription,
    )


class _Crossing(NamedTuple):
    """When a rule fires (ms from now), how fast its signal moves, and if it has no time, why."""

    fires_in_ms: int | None
    per_second: float = 0.0
    why_none: str = ""


def _forecast_crossing(inputs: ForecastInput, now_ns: int) -> _Crossing:
    """Return when the rule fires next, by its state and the shape of its condition."""
    rule, state = inputs.rule, inputs.state
    if inputs.value == NOT_APPLICABLE:
        rated = rule.shape is Shape.RATE_BELOW
        return _no_crossing(
            "no message has waited for long enough" if rated else "none of its messages wait in memory"
        )
    if state.done >= len(rule.ladder):
        if rule.ladder[-1].action is PolicyAction.ASK_TO_CLOSE and rule.mode is EnforcementMode.ENFORCE:
            return _Crossing(_ms_until(rule, state.acted_at + REPEAT_REQUEST_MS * _MS, now_ns))
        return _no_crossing("it has acted, and acts again only after the signal was within its limit")
    match rule.shape:
        case Shape.RATE_BELOW:
            return _forecast_rate(inputs, now_ns)
        case Shape.COUNT_IN_WINDOW:
            return _forecast_count(inputs, now_ns)
    return _forecast_level(inputs, now_ns)


def _no_crossing(reason: str, per_second: float = 0.0) -> _Crossing:
    """Return a crossing without a time, for the given reason."""
    return _Crossing(None, per_second, reason)


def _forecast_level(inputs: ForecastInput, now_ns: int) -> _Crossing:
    """Forecast a rule that fires while the signal is above a limit."""
    rule, value, state = inputs.rule, inputs.value, inputs.state
    rung = rule.ladder[state.done]
    is_early = rung.at_percent < 100
    threshold = rule.limit * rung.at_percent // 100
    hold_ms = 0 if is_early else rule.hold_ms + rung.after_ms
    has_not_cleared = rule.shape is Shape.SET_CLEAR and state.over_since > 0 and value > rule.clear
    if value > threshold or has_not_cleared:
        due = now_ns if is_early else (state.over_since or now_ns) + hold_ms * _MS
        if rung.action in REPEATED_RUNG_ACTIONS:
            return _Crossing(max(0, due - now_ns) // _MS)
        return _Crossing(_ms_until(rule, due, now_ns))
    if not value:
        return _no_crossing("none of the limit is used")
    if READINGS[rule.signal].ticking:
        due = now_ns + (threshold - value + hold_ms) * _MS
        return _Crossing(_ms_until(rule, due, now_ns), 1_000.0)
    slope, reason = fit_slope(_points_after_zero(inputs.points))
    if slope <= 0:
        return _no_crossing(reason or "the signal isn't rising")
    seconds = (threshold - value) / slope
    if is_beyond_horizon(seconds, inputs.points):
        return _no_crossing(TOO_FAR, slope)
    return _Crossing(_ms_until(rule, now_ns + int((seconds * 1_000 + hold_ms) * _MS), now_ns), slope)


def _forecast_rate(inputs: ForecastInput, now_ns: int) -> _Crossing:
    """Forecast a RATE_BELOW rule: the time until the rate is below the limit, plus its checks."""
    rule, value, state = inputs.rule, inputs.value, inputs.state
    hold_ms = rule.hold_ms + rule.ladder[state.done].after_ms
    checks_ms = max(hold_ms, rule.count * rule.check_ms)
    if state.over_since:
        checked_at = state.checked_at + (rule.count - state.tries) * rule.check_ms * _MS
        return _Crossing(max(0, state.over_since + hold_ms * _MS - now_ns, checked_at - now_ns) // _MS)
    if value < rule.limit:
        return _Crossing(checks_ms)
    slope, reason = fit_slope(inputs.points)
    if slope >= 0:
        return _no_crossing(reason or "the rate isn't falling")
    seconds = (value - rule.limit) / -slope
    if is_beyond_horizon(seconds, inputs.points):
        return _no_crossing(TOO_FAR, slope)
    return _Crossing(round(seconds * 1_000) + checks_ms, slope)


def _forecast_count(inputs: ForecastInput, now_ns: int) -> _Crossing:
    """Forecast a COUNT_IN_WINDOW rule at the pace of the crossings counted so far."""
    rule, marks = inputs.rule, inputs.state.marks
    if len(marks) >= rule.count:
        return _Crossing(0)
    if len(marks) < MIN_TREND_SAMPLES or marks[0] == marks[-1]:
        too_few = f"it was counted {len(marks)} of {rule.count} times, too few for a rate"
        return _no_crossing(too_few if marks else "no occurrence was counted")
    interval = (marks[-1] - marks[0]) / (len(marks) - 1)
    if rule.window_ms and interval * (rule.count - 1) > rule.window_ms * _MS:
        return _no_crossing("at the present rate the window never contains so many", 1e9 / interval)
    remaining_ns = marks[-1] + interval * (rule.count - len(marks)) - now_ns
    return _Crossing(max(0, round(remaining_ns)) // _MS, 1e9 / interval)


def _ms_until(rule: Rule, due_ns: int, now_ns: int) -> int:
    """Return the milliseconds until `due_ns`.

    For a time-driven rule, the milliseconds until its first check at or after `due_ns`.
    """
    if is_time_driven(rule):
        period = rule.check_ms * _MS
        due_ns = -(-max(due_ns, now_ns + 1) // period) * period
    return max(0, due_ns - now_ns) // _MS


def _percent(rule: Rule, value: int, limit: int, read: int) -> float:
    """Return the percentage of the limit in use; `read` is the raw signal value."""
    if read == NOT_APPLICABLE:
        return 0.0
    if rule.shape is Shape.RATE_BELOW:
        return round(min(MAX_PERCENT, 100 * limit / value), 1) if value else MAX_PERCENT
    return round(100 * value / limit, 1) if limit else (100.0 if value else 0.0)


def is_beyond_horizon(seconds: float, points: Points) -> bool:
    """Return whether a time in seconds from now is too far ahead for a forecast from these points."""
    return seconds > MAX_HORIZON_FACTOR * (points[-1][0] - points[0][0]) / 1e9


TOO_FAR: Final = "it is too far away for an estimate from these samples"
TOO_FEW: Final = "there are too few samples"


def _points_after_zero(points: Points) -> Points:
    """Return the points after the signal was last 0."""
    for index in range(len(points) - 1, -1, -1):
        if points[index][1] == 0:
            return points[index + 1 :]
    return points


def fit_slope(points: Points) -> tuple[float, str]:
    """Return the slope per second by least squares, and "" or the reason why it is 0.

    The slope is 0 when there are too few points, when no point differs, or when a line does not explain the
    movement.
    """
    count = len(points)
    if count < MIN_TREND_SAMPLES:
        return 0.0, TOO_FEW
    base = points[0][0]
    xs, ys = [(at - base) / 1e9 for at, _ in points], [float(value) for _, value in points]
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    spread, moved = sum((x - mean_x) ** 2 for x in xs), sum((y - mean_y) ** 2 for y in ys)
    if not spread or not moved:
        return 0.0, "the signal doesn't change"
    together = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    if together * together / (spread * moved) < MIN_FIT:
        return 0.0, "the signal doesn't change linearly"
    return together / spread, ""


def past_rates(rule: Rule, acked: Points, step_bytes: int) -> list[tuple[int, int]]:
    """Return the rates that a RATE_BELOW rule would have measured at past samples: (time, bytes per second).

    Args:
        rule: The rule.
        acked: (time, bytes acknowledged by the peer since logon) of each sample, oldest first.
        step_bytes: Step in which the peer's window moves; 0 if it moves smoothly.
    """
    period_ns = max(rule.rate_period_ms(step_bytes), TICK_MS // 2) * _MS
    rates, first = [], 0
    for at, bytes_by in acked:
        while first + 1 < len(acked) and acked[first + 1][0] <= at - period_ns:
            first += 1
        if acked[first][0] <= at - period_ns:
            rates.append((at, (bytes_by - acked[first][1]) * 1_000_000_000 // (at - acked[first][0])))
    return rates
