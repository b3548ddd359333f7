"""How each signal is read and worded, one row per signal.

`config.rule_terms.SIGNALS` has the unit, subject and reason of each signal. The judge, forecasts and
explanations use the rows here. A new signal needs a member of `Signal`, a row there and a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple

from broker_core.config.rule_terms import SIGNALS, Signal, SignalSubject, check_complete
from broker_core.slow_clients.evaluate.rule_state import NOT_APPLICABLE
from broker_core.slow_clients.evaluate.signals import ClientView, PoolSignals, SubscriptionView, age_ms
from broker_core.slow_clients.rules.rule import TICK_MS, Rule

_MS: Final = 1_000_000
BEHIND_MS: Final = TICK_MS
"""A client whose oldest message has waited for this long is behind."""

OfClient = Callable[[ClientView, Rule, int], int]
"""Function that reads a signal of a client: client, rule, time in ns → value."""
OfSubscription = Callable[[SubscriptionView, ClientView, Rule, int], int]
"""Function that reads a signal of a subscription: subscription, its client, rule, time in ns → value."""


class PoolSignalReader(NamedTuple):
    """How a pool's signal is read and worded."""

    used: Callable[[PoolSignals], int]
    """Function that returns the use of the resource that the pool limits."""
    share: Callable[[ClientView], int]
    """Function that returns a client's part of that use; 0 if acting on the client would relieve nothing."""
    verb: str
    """Verb for a client's use, in sentences."""


@dataclass(frozen=True, slots=True)
class SignalReader:
    """How a signal is read and worded. A reader is None where the signal is not measured.

    Attributes:
        subject: Beginning of the sentence that the value ends.
        sample_column: Index of the signal in `ClientSample`; None if samples do not contain it. The age in a
            sample is not OLDEST_AGE: it excludes delivered, unacknowledged messages.
        grows_with_time: Whether the value grows with time until an event resets it.
        outbox: Whether it measures messages in memory. Actions that move these elsewhere clear the signal.
        fires_without_backlog: Whether it can be above 0 for a client with nothing in memory or on disk.
    """

    subject: str
    of_client: OfClient | None = None
    of_subscription: OfSubscription | None = None
    of_pool: PoolSignalReader | None = None
    _: KW_ONLY
    sample_column: int | None
    grows_with_time: bool
    outbox: bool
    fires_without_backlog: bool


def _earlier_time(first_ns: int, second_ns: int) -> int:
    """Return the earlier of two times, where 0 means none."""
    return min(first_ns, second_ns) or first_ns or second_ns


def _live(client: ClientView, value: int) -> int:
    """Return `value`, or NOT_APPLICABLE for an offlined client."""
    return NOT_APPLICABLE if client.is_offlined else value


def _drain_rate(client: ClientView, rule: Rule, now_ns: int) -> int:
    """Return the highest rate, bytes/s, at which the client may have read over the rule's rate period.

    NOT_APPLICABLE unless messages have waited during the whole period. The age of the oldest message shows
    that: had the client read everything in between, the oldest would be younger. A client that gets messages
    as they arrive is therefore never slow, however few arrive.

    The peer's window may move in steps. A step becomes visible only after the client has read all of it. So
    the client may have read up to one step more than it acknowledged; the result includes that step.
    """
    backlog = client.backlog
    age, period_ms = age_ms(backlog.oldest_at, now_ns), rule.rate_period_ms(backlog.window_step_bytes)
    if backlog.owed_bytes < max(1, rule.guard_bytes) or age < rule.window_ms:
        return NOT_APPLICABLE
    behind = age_ms(client.behind_since, now_ns) if age >= BEHIND_MS else 0
    if max(age, behind) < period_ms or any(one.rate_limited or one.paused for one in client.subscriptions):
        return NOT_APPLICABLE
    mark = client.acked_at(now_ns - period_ms * _MS)
    if mark is None or mark.at == now_ns:
        return NOT_APPLICABLE
    read_bytes = backlog.acked_bytes - mark.acked_bytes + backlog.window_step_bytes
    return read_bytes * 1_000_000_000 // (now_ns - mark.at)


def _window_full(one: SubscriptionView, client: ClientView, rule: Rule, now_ns: int) -> int:
    return one.window_full_count if rule.counted else age_ms(one.window_full_since, now_ns)


def _acknowledged_rate(one: SubscriptionView, client: ClientView, rule: Rule, now_ns: int) -> int:
    """Return the messages per second that a client acknowledged over the rule's window.

    The result is never less than the true rate: a mark may lack acknowledgements of a second.

    NOT_APPLICABLE unless messages were unacknowledged during the whole window. The age of the oldest shows
    that.
    """
    owes = one.unacked_messages and age_ms(one.oldest_at, now_ns) >= rule.window_ms
    if not owes or one.paused or one.rate_limited or client.is_offlined:
        return NOT_APPLICABLE
    mark = one.acked_before(now_ns - rule.window_ms * _MS)
    if mark is None or not rule.window_ms:
        return NOT_APPLICABLE
    return (one.acked_messages - mark.messages) * 1_000 // rule.window_ms


READINGS: Final = check_complete(
    {
        Signal.POOL_MEMORY: SignalReader(
            "the clients of pool {pool} hold",
            of_pool=PoolSignalReader(
                lambda pool: pool.memory_used - pool.offlined_memory,
                lambda client: 0 if client.is_offlined else client.memory,
                "holds",
            ),
            sample_column=None,
            grows_with_time=False,
            outbox=False,
            fires_without_backlog=False,
        ),
        Signal.POOL_DISK: SignalReader(
            "the spools of pool {pool} use",
            of_pool=PoolSignalReader(lambda pool: pool.disk_used, lambda client: client.disk, "takes"),
            sample_column=None,
            grows_with_time=False,
            outbox=False,
            fires_without_backlog=False,
        ),
        Signal.OUTBOUND_BYTES: SignalReader(
            "its outbox holds",
            lambda client, _, __: _live(client, client.memory),
            lambda one, client, _, __: _live(client, one.outbox_bytes),
            sample_column=1,
            grows_with_time=False,
            outbox=True,
            fires_without_backlog=False,
        ),
        Signal.OUTBOUND_MESSAGES: SignalReader(
            "its outbox has",
            lambda client, _, __: _live(client, client.backlog.messages),
            lambda one, client, _, __: _live(client, one.outbox_messages),
            sample_column=None,
            grows_with_time=False,
            outbox=True,
            fires_without_backlog=False,
        ),
        Signal.SPOOL_BYTES: SignalReader(
            "its spool uses",
            lambda client, _, __: client.disk,
            sample_column=2,
            grows_with_time=False,
            outbox=False,
            fires_without_backlog=False,
        ),
        Signal.SPOOL_AGE: SignalReader(
            "it has been offline for",
            lambda client, _, now: age_ms(client.offlined_at, now) if client.is_offlined else 0,
            sample_column=None,
            grows_with_time=True,
            outbox=False,
            fires_without_backlog=True,
        ),
        Signal.CONFLATION_BYTES: SignalReader(
            "conflation stores for it",
            lambda client, _, __: client.conflation_bytes,
            lambda one, _, __, ___: one.conflation_bytes,
            sample_column=None,
            grows_with_time=False,
            outbox=False,
            fires_without_backlog=False,
        ),
        Signal.BACKLOG_BYTES: SignalReader(
            "its backlog is",
            lambda client, _, __: client.backlog.owed_bytes,
            lambda one, _, __, ___: one.backlog_bytes,
            sample_column=None,
            grows_with_time=False,
            outbox=False,
            fires_without_backlog=True,
        ),
        Signal.BACKLOG_MESSAGES: SignalReader(
            "its backlog is",
            lambda client, _, __: client.backlog.owed_messages,
            lambda one, _, __, ___: one.backlog_messages,
            sample_column=None,
            grows_with_time=False,
            outbox=False,
            fires_without_backlog=True,
        ),
        Signal.WAITING_MESSAGES: SignalReader(
            "it hasn't been sent",
            lambda client, _, __: client.waiting_messages,
            lambda one, _, __, ___: one.waiting_messages,
            sample_column=None,
            grows_with_time=False,
            outbox=False,
            fires_without_backlog=True,
        ),
        Signal.OLDEST_AGE: SignalReader(
            "its oldest message has been waiting for",
            lambda client, _, now: age_ms(
                _earlier_time(client.backlog.oldest_at, client.backlog.unacked_at), now
            ),
            lambda one, _, __, now: age_ms(one.oldest_at, now),
            sample_column=None,
            grows_with_time=False,
            outbox=False,
            fires_without_backlog=True,
        ),
        Signal.DRAIN_RATE: SignalReader(
            "it takes",
            _drain_rate,
            sample_column=None,
            grows_with_time=False,
            outbox=False,
            fires_without_backlog=False,
        ),
        Signal.WRITE_BLOCKED: SignalReader(
            "its socket has accepted no bytes for",
            lambda client, _, now: age_ms(client.backlog.blocked_since, now),
            lambda one, _, __, now: age_ms(one.blocked_since, now),
            sample_column=None,
            grows_with_time=True,
            outbox=False,
            fires_without_backlog=True,
        ),
        Signal.WINDOW_FULL: SignalReader(
            "its prefetch window has been full for",
            None,
            _window_full,
            sample_column=None,
            grows_with_time=True,
            outbox=False,
            fires_without_backlog=True,
        ),
        Signal.UNACKED_MESSAGES: SignalReader(
            "it hasn't acknowledged",
            None,
            lambda one, _, __, ___: one.unacked_messages,
            sample_column=None,
            grows_with_time=False,
            outbox=False,
            fires_without_backlog=True,
        ),
        Signal.UNACKED_AGE: SignalReader(
            "its oldest unacknowledged message was sent before",
            None,
            lambda one, _, __, now: age_ms(one.unacked_since, now),
            sample_column=None,
            grows_with_time=False,
            outbox=False,
            fires_without_backlog=True,
        ),
        Signal.ACK_SILENCE: SignalReader(
            "it hasn't acknowledged anything for",
            None,
            lambda one, _, __, now: age_ms(one.acked_at, now) if one.unacked_messages else 0,
            sample_column=None,
            grows_with_time=True,
            outbox=False,
            fires_without_backlog=True,
        ),
        Signal.ACKNOWLEDGED_RATE: SignalReader(
            "it acknowledges",
            None,
            _acknowledged_rate,
            sample_column=None,
            grows_with_time=False,
            outbox=False,
            fires_without_backlog=True,
        ),
        Signal.PINNED_BYTES: SignalReader(
            "the log retained for it is",
            lambda client, _, __: client.pinned_bytes,
            lambda one, _, __, ___: one.pinned_bytes,
            sample_column=None,
            grows_with_time=False,
            outbox=False,
            fires_without_backlog=True,
        ),
        Signal.USER_PINNED_BYTES: SignalReader(
            "the log retained for its user is",
            lambda client, _, __: client.user_pinned_bytes,
            sample_column=None,
            grows_with_time=False,
            outbox=False,
            fires_without_backlog=True,
        ),
    }
)
"""Readers by signal."""
OF_CLIENT: Final = {signal: row.of_client for signal, row in READINGS.items() if row.of_client is not None}
"""Functions that read a signal of a client."""
OF_SUBSCRIPTION: Final = {
    signal: row.of_subscription for signal, row in READINGS.items() if row.of_subscription is not None
}
"""Functions that read a signal of a subscription."""
OF_POOL: Final = {signal: row.of_pool for signal, row in READINGS.items() if row.of_pool is not None}
"""Readers of pool signals."""
OUTBOX: Final = frozenset(signal for signal, row in READINGS.items() if row.outbox)
"""Signals that measure messages in memory."""


def check_readers(read: dict[SignalSubject, set[Signal]]) -> None:
    """Check that every signal has a reader for exactly the subjects it is measured of.

    Raises:
        LookupError: A reader is missing, or reads a signal that `SIGNALS` does not list for the subject.
    """
    for measured, signals in read.items():
        if wrong := signals ^ {signal for signal, row in SIGNALS.items() if measured in row.measured}:
            names = ", ".join(sorted(wrong))
            raise LookupError(f"read and measured of a {measured} aren't the same: {names}")


check_readers(
    {
        SignalSubject.CLIENT: set(OF_CLIENT),
        SignalSubject.SUBSCRIPTION: set(OF_SUBSCRIPTION),
        SignalSubject.POOL: set(OF_POOL),
    }
)


def can_fire_without_backlog(rules: Iterable[Rule]) -> bool:
    """Return whether any of the rules can fire for a client with nothing in memory or on disk."""
    return any(READINGS[rule.signal].fires_without_backlog for rule in rules)


def client_value(rule: Rule, client: ClientView, now_ns: int) -> int:
    """Return the signal's value for a whole client; NOT_APPLICABLE when the signal does not apply now."""
    return OF_CLIENT[rule.signal](client, rule, now_ns)


def subscription_value(rule: Rule, client: ClientView, one: SubscriptionView, now_ns: int) -> int:
    """Return the signal's value for one subscription; NOT_APPLICABLE when the signal does not apply now."""
    return OF_SUBSCRIPTION[rule.signal](one, client, rule, now_ns)


def pool_value(rule: Rule, pool: PoolSignals) -> int:
    """Return the signal's value for a pool."""
    return OF_POOL[rule.signal].used(pool)
