"""The smallest change of a rule that would have spared a client: the broker's own `judge` on the minute that a decision recorded. Pure.

A decision carries its client's last 60 looks. They are judged again by the rule as it was: only where that comes to the same act can
anything be said. Then the limit, or the time it must be passed for, is raised until nothing is decided in that minute. What would have
come after it nobody knows: the act changed that.
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
_SHAPES: Final = {Shape.HARD, Shape.PERCENT_OF, Shape.LARGEST_WHEN_POOL_OVER}
_COLUMN: Final = {Signal.OUTBOUND_BYTES: 1, Signal.SPOOL_BYTES: 2, Signal.OLDEST_AGE: 3}
"""Which figure of a look a signal is; of others the decision has the last alone."""


class LimitAdvice(NamedTuple):
    """The smallest limit in `unit`, and the smallest hold in ms (None where the rule has none), either of which would have done."""

    limit: int
    was: int
    unit: str
    hold_ms: int | None

    @property
    def increase_percent(self) -> float:
        """How much more that limit is."""
        return 100.0 * (self.limit - self.was) / max(1, self.was)


@dataclass
class _RecordedSample:
    """A client and its backlog at one look; what no look recorded is none."""

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
        """It is a look."""

    def waiting(self) -> BacklogCounts:
        return BacklogCounts(1, 0, 0, "")

    def acked_at(self, until_ns: int) -> AckedMark | None:
        return None

    def recent_samples(self, now_ns: int) -> Sequence[ClientSample]:
        return ()


def _aged(attribute: str) -> Callable[[_RecordedSample, int], None]:
    return lambda look, value: setattr(look, attribute, look.at - value * _MS)


def _set(attribute: str) -> Callable[[_RecordedSample, int], None]:
    return lambda look, value: setattr(look, attribute, value)


def _spooled_for(look: _RecordedSample, value: int) -> None:
    look.is_offlined, look.offlined_at = True, look.at - value * _MS


_WRITERS: Final[Mapping[Signal, Callable[[_RecordedSample, int], None]]] = {
    Signal.OUTBOUND_BYTES: _set("memory"), Signal.OUTBOUND_MESSAGES: _set("messages"), Signal.SPOOL_BYTES: _set("disk"),
    Signal.CONFLATION_BYTES: _set("conflation_bytes"), Signal.BACKLOG_BYTES: _set("owed_bytes"), Signal.BACKLOG_MESSAGES: _set("owed_messages"),
    Signal.OLDEST_AGE: _aged("oldest_at"), Signal.WRITE_BLOCKED: _aged("blocked_since"), Signal.SPOOL_AGE: _spooled_for,
    Signal.POOL_MEMORY: _set("memory"), Signal.POOL_DISK: _set("disk"), Signal.PINNED_BYTES: _set("pinned_bytes"),
    Signal.USER_PINNED_BYTES: _set("user_pinned_bytes"),
}  # fmt: skip


def limit_advice(details: Mapping[str, Any]) -> LimitAdvice | None:
    """Of a decision as it is stored (`DecisionEntry`, times in ms); None where its minute can't be judged again."""
    rule = _rule(details)
    if rule is None:
        return None
    minute = _minute(details, rule)
    if not _acts(rule, minute, details):
        return None
    # A limit is passed by a greater value, and a hold is over when so much time has gone by: no others make a difference.
    values = {value for _, value in minute if value > rule.limit}
    limit = _least(values, lambda tried: not _acts(replace(rule, limit=tried), minute, details, or_soon=True))
    if limit is None:
        return None
    step = max(1, rule.limit // 200)  # told so that it can be told from what it was
    hold = None
    if not _preset(rule.name) and rule.signal not in POOL_SIGNALS:
        rule_states = {minute[-1][0] - at + 1 for at, _ in minute if minute[-1][0] - at >= rule.hold_ms}
        hold = _least(rule_states, lambda tried: not _acts(replace(rule, hold_ms=tried), minute, details))
    return LimitAdvice(-(-limit // step) * step, rule.limit, rule.unit, hold and -(-hold // 1_000) * 1_000)


def _preset(name: str) -> bool:
    group, _, field_name = name.rpartition(".")
    return field_name in PRESETS.get(group, {}) or name.split(".", 1)[0] in PRESETS


def _rule(details: Mapping[str, Any]) -> Rule | None:
    """The rule as the decision tells it."""
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
        str(details.get("rule", "")), "", scope, signal, shape, limit, (Rung(action),), 0, hold_ms=int(details.get("hold_ms") or 0)
    )  # fmt: skip


def _minute(details: Mapping[str, Any], rule: Rule) -> list[tuple[int, int]]:
    """What the rule saw: moments in ms with the signal's value, oldest first, the last as it was decided on."""
    at, column = int(details["at"]), _COLUMN.get(rule.signal)
    seen: list[tuple[int, int]] = []
    if column is not None:
        seen = [(int(one[0]), int(one[column])) for one in details.get("samples") or () if int(one[0]) < at]
    return [*seen, (at, int(details["observed"]))]


def _acts(
    rule: Rule, minute: Sequence[tuple[int, int]], details: Mapping[str, Any], or_soon: bool = False
) -> bool:
    """Whether the broker's judge decides anything in that minute; `or_soon`: or would, were it to go on as at its end."""
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
    return or_soon and any(hold.over_since for hold in (*rule_states.values(), *pool_states.values()))


def _least(tried: Collection[int], spares: Callable[[int], bool]) -> int | None:
    """The smallest that spares the client: what spares it, every greater one does too."""
    found = sorted(set(tried))
    place = bisect_left(found, True, key=spares)
    return found[place] if place < len(found) else None
