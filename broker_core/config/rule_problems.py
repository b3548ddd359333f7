"""What makes a custom rule contradict itself. A rule with such a problem is never saved."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from broker_core.config.rule_settings import RuleSettings, Rung
from broker_core.config.vocabulary import (
    CLIENT_SIGNALS,
    POOL_SIGNALS,
    SUBSCRIPTION_ACTIONS,
    WAITING_SIGNALS,
    Action,
    Choice,
    Shape,
    Signal,
)

_SHARED = (Signal.OUTBOUND_BYTES, Signal.SPOOL_BYTES, Signal.POOL_MEMORY, Signal.POOL_DISK)
_SILENT = (Signal.ACK_SILENCE, Signal.WRITE_BLOCKED)
_ORDER = list(Action)


def problems_of(rule: RuleSettings, narrow: bool) -> Iterator[str]:
    """What is missing or contradictory in a rule whose entries were laid over each other.

    `narrow`: it measures each subscription alone, by its own scope or by that of another of its entries.
    """
    if rule.signal is None:
        yield "it needs a signal"
        return
    if not rule.ladder:
        yield "it needs a ladder of at least one action"
        return
    yield from _shape_problems(rule, rule.signal, rule.shape or Shape.HARD)
    yield from _scope_problems(rule, rule.signal, narrow)
    yield from _ladder_problems(rule, rule.ladder, narrow)


def _shape_problems(rule: RuleSettings, signal: Signal, shape: Shape) -> Iterator[str]:
    if shape is Shape.PERCENT_OF:
        if rule.percent is None:
            yield "percent_of needs a percent"
        if signal not in _SHARED:
            yield f"percent_of is of a pool's memory or disk, and {signal} is neither"
    elif rule.limit is None:
        yield "it needs a limit"
    if shape is Shape.SOFT_FOR and not rule.hold_ms:
        yield "soft_for needs hold_ms"
    if shape is Shape.COUNT_IN_WINDOW and not rule.count:
        yield "count_in_window needs a count"
    if (shape is Shape.RATE_BELOW) != (signal is Signal.DRAIN_RATE):
        yield "rate_below and drain_rate belong together"
    if shape is Shape.RATE_BELOW and not rule.window_ms:
        yield "rate_below needs window_ms"
    if (
        shape is Shape.SET_CLEAR
        and rule.limit is not None
        and (rule.clear is None or rule.clear >= rule.limit)
    ):
        yield "set_clear needs a clear that is less than the limit"
    if shape is Shape.DURATION_WITHOUT and signal not in _SILENT:
        yield "duration_without is for ack_silence and write_blocked"


def _scope_problems(rule: RuleSettings, signal: Signal, narrow: bool) -> Iterator[str]:
    pooled = rule.choose is Choice.LARGEST_IN_POOL
    if (signal in POOL_SIGNALS) != pooled:
        yield "choose largest_in_pool and a pool's signal belong together"
    if rule.shape is Shape.LARGEST_WHEN_POOL_OVER and not pooled:
        yield "largest_when_pool_over needs a pool's signal"
    if pooled and rule.shape in (Shape.COUNT_IN_WINDOW, Shape.DURATION_WITHOUT):
        yield f"{rule.shape} can't be asked of a pool"
    if pooled and (rule.scope.user or rule.scope.client or rule.scope.per_subscription):
        yield "a pool is the instance's or a transport's: the scope can't be narrower"
    if signal in CLIENT_SIGNALS and narrow:
        yield f"{signal} is measured of whole clients, and this rule, by its scopes, of subscriptions"


def _ladder_problems(rule: RuleSettings, ladder: tuple[Rung, ...], narrow: bool) -> Iterator[str]:
    for rung in ladder:
        if rung.action in SUBSCRIPTION_ACTIONS and not narrow:
            yield f"{rung.action} needs a subscription: give the scope a topic"
        if rung.action is Action.REFUSE and not rung.for_ms:
            yield "refuse needs for_ms: for how long"
        if rung.action is Action.DELETE_DURABLE and not rule.confirm_delete:
            yield "delete_durable removes what the client is owed: set confirm_delete to true if that is meant"
        if rung.action is Action.DISCARD_OLDEST and rule.signal not in WAITING_SIGNALS:
            yield "discard_oldest cuts bytes or messages that wait, and the signal is neither"
        if rung.at_percent < 100 and (
            rung.after_ms or rule.shape in (Shape.RATE_BELOW, Shape.COUNT_IN_WINDOW)
        ):
            yield "an early rung (at_percent under 100) has neither after_ms nor a rate or count"
    for one, other in pairwise(ladder):
        if _ORDER.index(one.action) >= _ORDER.index(other.action):
            yield f"the ladder goes from narrow to wide: {other.action} can't come after {one.action}"
        if (one.at_percent, one.after_ms) == (other.at_percent, other.after_ms):
            yield f"{one.action} never happens: {other.action} is due at the same moment"
        elif other.at_percent < one.at_percent or other.after_ms < one.after_ms:
            yield f"{other.action} would come before {one.action}"
