"""The signals as they are read and said: one row each. Unit, scope and reason stand in `config.rule_terms.SIGNALS`.

Whoever judges, forecasts or explains draws from these rows, so that a new signal is a member, a row there and a row here.
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
"""A client whose oldest message has waited as long is behind."""

OfClient = Callable[[ClientView, Rule, int], int]
OfSubscription = Callable[[SubscriptionView, ClientView, Rule, int], int]


class PoolSignalReader(NamedTuple):
    """How a pool's signal is read."""

    used: Callable[[PoolSignals], int]
    """What the pool is short of."""
    share: Callable[[ClientView], int]
    """A client's part in that; 0: acting on it relieves nothing."""
    verb: str
    """What a client does with its part."""


@dataclass(frozen=True, slots=True)
class SignalReader:
    """How a signal is read and said; None where it isn't measured.

    subject   begins the sentence that its figure ends
    column    which figure of a client's samples it is; None: samples don't have it
    ticking   grows as time passes, until something happens
    outbox    of what waits in memory: acts that move it elsewhere take the signal away
    beyond    may be there for a client of whom nothing is in memory or on disk
    """

    subject: str
    of_client: OfClient | None = None
    of_subscription: OfSubscription | None = None
    of_pool: PoolSignalReader | None = None
    _: KW_ONLY
    column: int | None
    ticking: bool
    outbox: bool
    beyond: bool


def _earlier(one_ns: int, other_ns: int) -> int:
    """Of two moments; 0 is none."""
    return min(one_ns, other_ns) or one_ns or other_ns


def _live(client: ClientView, value: int) -> int:
    return NOT_APPLICABLE if client.is_offlined else value


def _drain_rate(client: ClientView, rule: Rule, now_ns: int) -> int:
    """Bytes a second over the rule's look-back, while something has waited for all of it: the most that it may have read.

    Of a step of its window, which comes when all of it has been read, it is seen only at the end; so what was read in any
    time is what was taken, or up to a step more.
    The oldest message tells: had the client taken everything in between, it would be younger. So a client that is
    served as things come is never slow, however little comes.
    """
    backlog = client.backlog
    age, look_back = age_ms(backlog.oldest_at, now_ns), rule.look_back_ms(backlog.window_step_bytes)
    if backlog.owed_bytes < max(1, rule.guard_bytes) or age < rule.window_ms:
        return NOT_APPLICABLE
    behind = age_ms(client.behind_since, now_ns) if age >= BEHIND_MS else 0
    if max(age, behind) < look_back or any(one.rate_limited or one.paused for one in client.subscriptions):
        return NOT_APPLICABLE
    before = client.acked_at(now_ns - look_back * _MS)
    if before is None or before.at == now_ns:
        return NOT_APPLICABLE
    taken = backlog.acked_bytes - before.taken_bytes + backlog.window_step_bytes
    return taken * 1_000_000_000 // (now_ns - before.at)


def _window_full(one: SubscriptionView, client: ClientView, rule: Rule, now_ns: int) -> int:
    return one.window_full_count if rule.counted else age_ms(one.window_full_since, now_ns)


READINGS: Final = check_complete({
    Signal.POOL_MEMORY: SignalReader("the clients of pool {pool} hold", of_pool=PoolSignalReader(
        lambda pool: pool.memory_used - pool.memory_leaving, lambda client: 0 if client.is_offlined else client.memory, "holds"),
        column=None, ticking=False, outbox=False, beyond=False),
    Signal.POOL_DISK: SignalReader("the spools of pool {pool} take", of_pool=PoolSignalReader(
        lambda pool: pool.disk_used, lambda client: client.disk, "takes"),
        column=None, ticking=False, outbox=False, beyond=False),
    Signal.OUTBOUND_BYTES: SignalReader(
        "its outbox holds", lambda client, _, __: _live(client, client.memory),
        lambda one, client, _, __: _live(client, one.outbox_bytes), column=1, ticking=False, outbox=True, beyond=False),
    Signal.OUTBOUND_MESSAGES: SignalReader(
        "for it wait", lambda client, _, __: _live(client, client.backlog.messages),
        lambda one, client, _, __: _live(client, one.outbox_messages), column=None, ticking=False, outbox=True, beyond=False),
    Signal.SPOOL_BYTES: SignalReader("its spool takes", lambda client, _, __: client.disk,
        column=2, ticking=False, outbox=False, beyond=False),
    Signal.SPOOL_AGE: SignalReader(
        "it has been offline for", lambda client, _, now: age_ms(client.offlined_at, now) if client.is_offlined else 0,
        column=None, ticking=True, outbox=False, beyond=True),
    Signal.CONFLATION_BYTES: SignalReader(
        "conflation holds for it", lambda client, _, __: client.conflation_bytes, lambda one, _, __, ___: one.conflation_bytes,
        column=None, ticking=False, outbox=False, beyond=False),
    Signal.BACKLOG_BYTES: SignalReader(
        "it is owed", lambda client, _, __: client.backlog.owed_bytes, lambda one, _, __, ___: one.backlog_bytes,
        column=None, ticking=False, outbox=False, beyond=True),
    Signal.BACKLOG_MESSAGES: SignalReader(
        "it is owed", lambda client, _, __: client.backlog.owed_messages, lambda one, _, __, ___: one.backlog_messages,
        column=None, ticking=False, outbox=False, beyond=True),
    Signal.OLDEST_AGE: SignalReader(
        "its oldest message has been waiting for",
        lambda client, _, now: age_ms(_earlier(client.backlog.oldest_at, client.backlog.unacked_at), now),
        lambda one, _, __, now: age_ms(one.oldest_at, now), column=None, ticking=False, outbox=False, beyond=True),
    Signal.DRAIN_RATE: SignalReader("it takes", _drain_rate, column=None, ticking=False, outbox=False, beyond=False),
    Signal.WRITE_BLOCKED: SignalReader(
        "its connection has taken nothing for", lambda client, _, now: age_ms(client.backlog.blocked_since, now),
        lambda one, _, __, now: age_ms(one.blocked_since, now), column=None, ticking=True, outbox=False, beyond=True),
    Signal.WINDOW_FULL: SignalReader("its prefetch window has been full for", None, _window_full,
        column=None, ticking=True, outbox=False, beyond=True),
    Signal.UNACKED_MESSAGES: SignalReader("it hasn't acknowledged", None, lambda one, _, __, ___: one.unacked_messages,
        column=None, ticking=False, outbox=False, beyond=True),
    Signal.UNACKED_AGE: SignalReader(
        "its oldest unacknowledged message was sent before", None,
        lambda one, _, __, now: age_ms(one.unacked_since, now), column=None, ticking=False, outbox=False, beyond=True),
    Signal.ACK_SILENCE: SignalReader(
        "it hasn't acknowledged anything for", None,
        lambda one, _, __, now: age_ms(one.acked_at, now) if one.unacked_messages else 0,
        column=None, ticking=True, outbox=False, beyond=True),
    Signal.PINNED_BYTES: SignalReader(
        "of the log it holds", lambda client, _, __: client.pinned_bytes, lambda one, _, __, ___: one.pinned_bytes,
        column=None, ticking=False, outbox=False, beyond=True),
    Signal.USER_PINNED_BYTES: SignalReader("of the log its user holds", lambda client, _, __: client.user_pinned_bytes,
        column=None, ticking=False, outbox=False, beyond=True),
})  # fmt: skip
OF_CLIENT: Final = {signal: row.of_client for signal, row in READINGS.items() if row.of_client is not None}
OF_SUBSCRIPTION: Final = {
    signal: row.of_subscription for signal, row in READINGS.items() if row.of_subscription is not None
}
OF_POOL: Final = {signal: row.of_pool for signal, row in READINGS.items() if row.of_pool is not None}
OUTBOX: Final = frozenset(signal for signal, row in READINGS.items() if row.outbox)


def check_readers(read: dict[SignalSubject, set[Signal]]) -> None:
    """Every signal can be read off just what it is measured of. Raises LookupError otherwise."""
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
    """Whether one of them may be passed by a client of whom nothing is in memory or on disk."""
    return any(READINGS[rule.signal].beyond for rule in rules)


def client_value(rule: Rule, client: ClientView, now_ns: int) -> int:
    """The signal's value for a whole client; NOT_APPLICABLE when it says nothing about it now."""
    return OF_CLIENT[rule.signal](client, rule, now_ns)


def subscription_value(rule: Rule, client: ClientView, one: SubscriptionView, now_ns: int) -> int:
    """The signal's value for one subscription."""
    return OF_SUBSCRIPTION[rule.signal](one, client, rule, now_ns)


def pool_value(rule: Rule, pool: PoolSignals) -> int:
    """The signal's value for a pool."""
    return OF_POOL[rule.signal].used(pool)
