"""Smallest change of a rule that would have spared a client, found by re-judging recorded samples. Pure
functions.

A decision stores its client's last 60 samples. The broker's own `judge` evaluates them with the original
rule. If that does not reproduce the decision, there is no advice. Otherwise the limit, or the hold time, is
raised until no decision results from those samples. The time after the decision is unknown, because the
decision changed it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from broker_core.config.preset_settings import PRESETS
from broker_core.config.rule_terms import POOL_SIGNALS, PolicyAction, Shape, Signal
from broker_core.config.rules import Rung
from broker_core.slow_clients.evaluate.judge import ClientUnderRules, judge
from broker_core.slow_clients.evaluate.rule_state import needs_check
from broker_core.slow_clients.evaluate.signals import (
    AckedMark,
    BacklogCounts,
    ClientSample,
    PoolSignals,
    RuleStates,
)
from broker_core.slow_clients.rules.rule import Rule

_MS: Final = 1_000_000
"""Nanoseconds of a millisecond."""
_SHAPES: Final = {Shape.HARD, Shape.PERCENT_OF, Shape.LARGEST_WHEN_POOL_OVER}
"""Shapes of rules that can be judged again from samples."""
_COLUMN: Final = {Signal.OUTBOUND_BYTES: 1, Signal.SPOOL_BYTES: 2, Signal.OLDEST_AGE: 3}
"""Column of each signal in a recorded sample.

For other signals a decision stores only the last value.
"""


class LimitAdvice(NamedTuple):
    """Smallest limit in `unit`, and smallest hold in ms, either of which would have avoided the decision.

    `hold_ms` is None where the rule has no hold. `was` is the rule's limit.
    """

    limit: int
    was: int
    unit: str
    hold_ms: int | None

    @property
    def increase_percent(self) -> float:
        """Increase from the rule's limit to the advised one, in percent."""
        return 100.0 * (self.limit - self.was) / max(1, self.was)


@dataclass
class _RecordedSample:
    """Client and its backlog at one recorded sample, as the broker's judge reads them.

    Values that the sample lacks are 0.
    """

    at: int
    name: str
    transport: str
    pool_name: str
    memory: int = 0
    disk: int = 0
    conflation_bytes: int = 0
    pinned_bytes: int = 0
    user_pinned_bytes: int = 0
    oldest_at: int = 0
    owed_bytes: int = 0
    owed_messages: int = 0
    messages: int = 0
    blocked_since: int = 0
    is_offlined: bool = False
    offlined_at: int = 0
    rule_states: RuleStates = field(default_factory=dict)
    connection_number: int = 0
    behind_since: int = 0
    unacked_at: int = 0
    acked_bytes: int = 0
    window_step_bytes: int = 0
    subscriptions: tuple[()] = ()

    @property
    def backlog(self) -> _RecordedSample:
        return self

    def update_progress(self) -> None:
        """Do nothing, since a recorded sample does not change."""

    def waiting(self) -> BacklogCounts:
        return BacklogCounts(1, 0, 0, "")

    def acked_at(self, until_ns: int) -> AckedMark | None:
        return None

    def recent_samples(self, now_ns: int) -> Sequence[ClientSample]:
        return ()


def _aged(attribute: str) -> Callable[[_RecordedSample, int], None]:
    """Return a function that sets an attribute to the moment of the given age (ms)."""
    return lambda sample, value: setattr(sample, attribute, sample.at - value * _MS)


def _set(attribute: str) -> Callable[[_RecordedSample, int], None]:
    """Return a function that sets an attribute."""
    return lambda sample, value: setattr(sample, attribute, value)


def _spooled_for(sample: _RecordedSample, value: int) -> None:
    """Set the moment at which the client was offlined."""
    sample.is_offlined, sample.offlined_at = True, sample.at - value * _MS


_WRITERS: Final[Mapping[Signal, Callable[[_RecordedSample, int], None]]] = {
    Signal.OUTBOUND_BYTES: _set("memory"),
    Signal.OUTBOUND_MESSAGES: _set("messages"),
    Signal.SPOOL_BYTES: _set("disk"),
    Signal.CONFLATION_BYTES: _set("conflation_bytes"),
    Signal.BACKLOG_BYTES: _set("owed_bytes"),
    Signal.BACKLOG_MESSAGES: _set("owed_messages"),
    Signal.OLDEST_AGE: _aged("oldest_at"),
    Signal.WRITE_BLOCKED: _aged("blocked_since"),
    Signal.SPOOL_AGE: _spooled_for,
    Signal.POOL_MEMORY: _set("memory"),
    Signal.POOL_DISK: _set("disk"),
    Signal.PINNED_BYTES: _set("pinned_bytes"),
    Signal.USER_PINNED_BYTES: _set("user_pinned_bytes"),
}
"""Functions that set a signal's value in a `_RecordedSample`. Ages are converted to moments."""


def limit_advice(details: Mapping[str, Any]) -> LimitAdvice | None:
    """Return advice for a stored decision; None if its samples can't be judged again.

    `details` is a `DecisionEntry` as stored, with times in ms.
    """
    rule = _rule(details)
    if rule is None:
        return None
    minute = _minute(details, rule)
    if not _has_decision(rule, minute, details):
        return None
    # Only observed values matter: a larger value exceeds a limit, and a hold ends after the observed time.
    values = {value for _, value in minute if value > rule.limit}
    limit = _smallest_sparing_value(
        values, lambda tried: not _has_decision(replace(rule, limit=tried), minute, details, or_soon=True)
    )
    if limit is None:
        return None
    # round up by at least 0.5 % so that the advice differs visibly from the old limit
    step = max(1, rule.limit // 200)
    hold_ms = None
    if not _preset(rule.name) and rule.signal not in POOL_SIGNALS:
        rule_states = {minute[-1][0] - at + 1 for at, _ in minute if minute[-1][0] - at >= rule.hold_ms}
        hold_ms = _smallest_sparing_value(
            rule_states, lambda tried: not _has_decision(replace(rule, hold_ms=tried), minute, details)
        )
    return LimitAdvice(
        -(-limit // step) * step, rule.limit, rule.unit, hold_ms and -(-hold_ms // 1_000) * 1_000
    )


def _preset(name: str) -> bool:
    """Return whether a rule was compiled from a preset."""
    group, _, field_name = name.rpartition(".")
    return field_name in PRESETS.get(group, {}) or name.split(".", 1)[0] in PRESETS


def _rule(details: Mapping[str, Any]) -> Rule | None:
    """Return the rule that a decision describes; None if it can't be judged again."""
    try:
        signal, shape, action = (
            Signal(details["signal"]),
            Shape(details.get("shape") or Shape.HARD),
            PolicyAction(details["action"]),
        )
        limit, observed = int(details["limit"]), int(details["observed"])
    except (KeyError, TypeError, ValueError):
        return None
    if shape not in _SHAPES or signal not in _WRITERS or not 0 <= limit < observed:
        return None
    scope = str(details.get("pool", "") if signal in POOL_SIGNALS else details.get("transport", ""))
    return Rule(
        str(details.get("rule", "")),
        "",
        scope,
        signal,
        shape,
        limit,
        (Rung(action),),
        0,
        hold_ms=int(details.get("hold_ms") or 0),
    )


def _minute(details: Mapping[str, Any], rule: Rule) -> list[tuple[int, int]]:
    """Return the signal's values that the rule saw: (moment in ms, value), oldest first, ending with the
    decision.
    """
    at, column = int(details["at"]), _COLUMN.get(rule.signal)
    values: list[tuple[int, int]] = []
    if column is not None:
        values = [(int(one[0]), int(one[column])) for one in details.get("samples") or () if int(one[0]) < at]
    return [*values, (at, int(details["observed"]))]


def _has_decision(
    rule: Rule, minute: Sequence[tuple[int, int]], details: Mapping[str, Any], or_soon: bool = False
) -> bool:
    """Return whether the broker's judge makes a decision from the samples.

    With `or_soon` also True if a hold is still running at the end, so that a decision would follow.
    """
    pool, name = str(details.get("pool", "")), str(details.get("client", ""))
    of_pool = rule.signal in POOL_SIGNALS
    rule_states: RuleStates = {}
    pool_states: Mapping[str, Any] = {}
    for at_ms, value in minute:
        if not rule_states and not pool_states and not needs_check(rule, value):
            continue
        now = at_ms * _MS
        client = _RecordedSample(now, name, str(details.get("transport", "")), pool, rule_states=rule_states)
        _WRITERS[rule.signal](client, int(details.get("used") or value) if of_pool else value)
        pools = [
            PoolSignals(pool, memory_used=value, disk_used=value, rule_states=pool_states)
            if of_pool
            else PoolSignals(pool)
        ]
        result = judge(
            [ClientUnderRules(client, () if of_pool else (rule,))],
            (rule,) if of_pool else (),
            pools,
            now,
            (rule.mode,),
        )
        if result.decisions:
            return True
        rule_states, pool_states = (
            result.rule_states.get(name, rule_states),
            result.pool_states.get(pool, pool_states),
        )
    return or_soon and any(state.over_since for state in (*rule_states.values(), *pool_states.values()))


def _smallest_sparing_value(tried: Collection[int], spares: Callable[[int], bool]) -> int | None:
    """Return the smallest value that spares the client.

    Every greater value must spare it too (binary search).
    """
    found = sorted(set(tried))
    index = bisect_left(found, True, key=spares)
    return found[index] if index < len(found) else None
