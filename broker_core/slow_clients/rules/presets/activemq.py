"""ActiveMQ's slow consumers (seed 003): policy entries by topic, compiled to rules for each subscription.

    constantPendingMessageLimitStrategy      limit: messages kept in memory beyond the prefetch, hence not dispatched; the
                                             oldest are discarded. -1, the default, keeps all. Not for durable
                                             subscriptions. What was dispatched and isn't acknowledged counts
                                             with what waits, so the limit is prefetch and limit together. A
                                             subscription without a window has the policy's prefetch
    prefetchRatePendingMessageLimitStrategy  multiplier of the prefetch, likewise; where both are set the lower counts
    abortSlowConsumerStrategy                a consumer is slow from when there is something to dispatch and its
                                             prefetch window is full until dispatch resumes. Aborted when it was slow
      maxSlowCount      -1                   that often (-1: any number of times),
      maxSlowDuration   30000 ms             or that long without a pause (0 or -1: any time),
      checkPeriod       30000 ms             looked at that often: so the worst case is their sum
      abortConnection   false                false: the subscription is ended (ActiveMQ asks the client first,
                                             and removes the consumer itself a second later); true: its
                                             connection is closed
    abortSlowAckConsumerStrategy             a consumer is slow while it owes acknowledgements and its last
                                             one is too long ago. Aborted when it was slow at enough looks,
                                             one `checkPeriod` apart. Both limits below count looks
      maxTimeSinceLastAck  30000 ms          so long ago (-1: never slow),
      maxSlowCount      -1                   so many looks one after the other (0 or -1: any number),
      maxSlowDuration   30000 ms             or so many that their periods come to it (0 or -1: any number)

A subscription without a window, which the document doesn't know, is slow from when its peer has taken nothing for a second
until it takes something. One with a window is so by its duration, too: a peer that reads nothing never fills a wide window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker_core.config.preset_settings import ACTIVEMQ, MAX_PREFETCH, default_settings
from broker_core.config.rule_terms import PolicyAction, Shape, Signal
from broker_core.config.rules import Rung
from broker_core.slow_clients.rules.rule import TICK_MS, Rule

BLOCKED_MS: Final = 1_000
"""Without a window: how long the socket must have taken nothing for the subscription to count as slow once."""

DEFAULTS: Final = default_settings(ACTIVEMQ)


def rules(settings: Mapping[str, Any], revision: int, *, durable: bool, prefetch: int) -> Iterable[Rule]:
    """The rules of effective settings for a subscription with that prefetch (0: it has no window)."""
    common = {"mode": settings["mode"], "per_subscription": True}
    if (pending := pending_limit(settings, prefetch)) is not None and not durable:
        setting, limit = pending
        yield Rule(
            "activemq.pending_message_limit", setting, "", Signal.BACKLOG_MESSAGES, Shape.HARD,
            limit + (prefetch or settings["prefetch"] or 0),
            (Rung(PolicyAction.DISCARD_OLDEST),), revision, **common,
        )  # fmt: skip
    if settings["abort_slow_ack_consumer_strategy"]:
        yield from _ack_rules(settings, revision, prefetch)
    if not settings["abort_slow_consumer_strategy"]:
        return
    ladder = _abort(settings)
    count, duration, period = (
        settings[key] for key in ("max_slow_count", "max_slow_duration", "check_period")
    )
    signal = Signal.WINDOW_FULL if prefetch else Signal.WRITE_BLOCKED
    if count > 0:
        yield Rule(
            "activemq.max_slow_count", "maxSlowCount", "", signal, Shape.COUNT_IN_WINDOW, BLOCKED_MS, ladder, revision,
            # A window that was full is counted by the subscription; that the socket took nothing is seen by looking.
            count=count, check_ms=period if prefetch else TICK_MS, **common,
        )  # fmt: skip
    lasting = {"activemq.max_slow_duration": signal}
    if prefetch:
        lasting["activemq.max_slow_duration.blocked"] = Signal.WRITE_BLOCKED
    for name, measured in lasting.items() if duration > 0 else ():
        yield Rule(
            name, "maxSlowDuration", "", measured, Shape.HARD, duration, ladder, revision, check_ms=period, **common,
        )  # fmt: skip


def looks_until_abort(settings: Mapping[str, Any]) -> int | None:
    """Return at how many consecutive looks a consumer must be slow to be aborted; None is never.

    abortSlowAckConsumerStrategy counts looks: `max_slow_duration` is divided by `check_period`.
    """
    if settings["max_time_since_last_ack"] < 0:
        return None
    looks = []
    if (count := settings["max_slow_count"]) > 0:
        looks.append(count)
    if (duration := settings["max_slow_duration"]) > 0:
        looks.append(-(-duration // settings["check_period"]))
    return min(looks, default=None)


def _ack_rules(settings: Mapping[str, Any], revision: int, prefetch: int) -> Iterable[Rule]:
    """Yield the rule of abortSlowAckConsumerStrategy, if it ever aborts.

    Where no application acknowledges, the peer's kernel does: then what it has not taken is owed.
    """
    looks, period = looks_until_abort(settings), settings["check_period"]
    if looks is None:
        return
    # Looks are up to a tick late, each by another time. A hold that is a tick shorter needs as many.
    spare = TICK_MS if period > 2 * TICK_MS else 0
    hold = max((looks - 1) * period - spare, 0)
    yield Rule(
        "activemq.max_time_since_last_ack", "maxTimeSinceLastAck", "",
        Signal.ACK_SILENCE if prefetch else Signal.WRITE_BLOCKED, Shape.SOFT_FOR if hold else Shape.HARD,
        settings["max_time_since_last_ack"], _abort(settings), revision, hold_ms=hold, check_ms=period,
        mode=settings["mode"], per_subscription=True,
    )  # fmt: skip


def _abort(settings: Mapping[str, Any]) -> tuple[Rung, ...]:
    """Return the ladder of both abort strategies."""
    return (
        Rung(PolicyAction.DISCONNECT if settings["abort_connection"] else PolicyAction.CANCEL_SUBSCRIPTION),
    )


def pending_limit(settings: Mapping[str, Any], prefetch: int) -> tuple[str, int] | None:
    """Return the strategy that counts and how many messages it keeps beyond the prefetch; None keeps all.

    `prefetch` is the subscription's window, 0 without one.
    """
    limits = []
    if (constant := settings["constant_pending_message_limit_strategy"]) >= 0:
        limits.append((constant, "constantPendingMessageLimitStrategy"))
    if (multiplier := settings["prefetch_rate_pending_message_limit_strategy"]) is not None:
        window = prefetch or settings["prefetch"] or MAX_PREFETCH
        limits.append((int(multiplier * window), "prefetchRatePendingMessageLimitStrategy"))
    if not limits:
        return None
    limit, setting = min(limits)
    return setting, limit
