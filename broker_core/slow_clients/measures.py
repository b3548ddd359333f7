"""How each signal is read off a client or a subscription. NOT_APPLICABLE when it says nothing about it now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker_core.slow_clients.holds import NOT_APPLICABLE
from broker_core.slow_clients.rules import Rule, Shape, Signal
from broker_core.slow_clients.signals import ClientView, SubscriptionSignals, age_ms

_MS: Final = 1_000_000
OUTBOUND: Final = frozenset({Signal.OUTBOUND_BYTES, Signal.OUTBOUND_MESSAGES})
"""Of clients that aren't offlined only."""


def of_client(rule: Rule, client: ClientView, now_ns: int) -> int:
    """The signal's value for a whole client."""
    if rule.signal is Signal.DRAIN_RATE:
        return _drain_rate(rule, client, now_ns)
    return _OF_CLIENT[rule.signal](client, now_ns)


def of_subscription(rule: Rule, client: ClientView, subscription: SubscriptionSignals, now_ns: int) -> int:
    """The signal's value for one subscription."""
    if rule.shape is Shape.COUNT_IN_WINDOW and rule.signal is Signal.WINDOW_FULL:
        return subscription.window_full_count
    return _OF_SUBSCRIPTION[rule.signal](subscription, client, now_ns)


def _drain_rate(rule: Rule, client: ClientView, now_ns: int) -> int:
    """Bytes a second over the rule's window, while something has waited for all of it.

    The oldest message tells: had the client taken everything in between, it would be younger than the window. So a
    client that is served as things come is never slow, however little comes.
    """
    waiting = client.outbox_bytes + client.spool_bytes
    if waiting < max(1, rule.guard_bytes) or age_ms(client.oldest_at, now_ns) < rule.window_ms:
        return NOT_APPLICABLE
    if any(subscription.rate_limited or subscription.paused for subscription in client.subscriptions):
        return NOT_APPLICABLE
    before = client.past(now_ns - rule.window_ms * _MS)
    if before is None:
        return NOT_APPLICABLE
    return (client.sent_bytes - before.sent_bytes) * 1_000_000_000 // (now_ns - before.at)


def _outbound(client: ClientView, value: int) -> int:
    return NOT_APPLICABLE if client.offlined else value


_OF_CLIENT: Final[dict[Signal, Callable[[ClientView, int], int]]] = {
    Signal.OUTBOUND_BYTES: lambda client, _: _outbound(client, client.outbox_bytes),
    Signal.OUTBOUND_MESSAGES: lambda client, _: _outbound(client, client.outbox_messages),
    Signal.SPOOL_BYTES: lambda client, _: client.spool_bytes,
    Signal.SPOOL_AGE: lambda client, now: age_ms(client.offlined_at, now) if client.offlined else 0,
    Signal.CONFLATION_BYTES: lambda client, _: client.conflation_bytes,
    Signal.BACKLOG_BYTES: lambda client, _: client.outbox_bytes + client.spool_bytes,
    Signal.BACKLOG_MESSAGES: lambda client, _: client.outbox_messages + client.spool_messages,
    Signal.OLDEST_AGE: lambda client, now: age_ms(client.oldest_at, now),
    Signal.WRITE_BLOCKED: lambda client, now: age_ms(client.write_blocked_since, now),
}
_OF_SUBSCRIPTION: Final[dict[Signal, Callable[[SubscriptionSignals, ClientView, int], int]]] = {
    Signal.OUTBOUND_BYTES: lambda one, client, _: _outbound(client, one.outbox_bytes),
    Signal.OUTBOUND_MESSAGES: lambda one, client, _: _outbound(client, one.outbox_messages),
    Signal.CONFLATION_BYTES: lambda one, *_: one.conflation_bytes,
    Signal.BACKLOG_BYTES: lambda one, *_: one.backlog_bytes,
    Signal.BACKLOG_MESSAGES: lambda one, *_: one.backlog_messages,
    Signal.OLDEST_AGE: lambda one, _, now: age_ms(one.oldest_at, now),
    Signal.WINDOW_FULL: lambda one, _, now: age_ms(one.window_full_since, now),
    Signal.UNACKED_MESSAGES: lambda one, *_: one.unacked_messages,
    Signal.UNACKED_AGE: lambda one, _, now: age_ms(one.unacked_since, now),
    Signal.ACK_SILENCE: lambda one, _, now: age_ms(one.acked_at, now) if one.unacked_messages else 0,
}
