"""Clients and subscriptions as plain values, for tests of the rule evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from broker_core.slow_clients.accounts.client_usage import ClientUsage
from broker_core.slow_clients.evaluate.judge import (
    ClientUnderRules,
    JudgeResult,
    RuledSubscriptionView,
    judge,
)
from broker_core.slow_clients.evaluate.signals import (
    AckedMark,
    AckedMessagesMark,
    BacklogCounts,
    BacklogView,
    ClientSample,
    PoolSignals,
    RuleStates,
    SubscriptionView,
)
from broker_core.slow_clients.rules.rulebook import RuleBook
from broker_core.slow_clients.rules.scopes import RuleSubject


@dataclass(slots=True)
class SubscriptionSignals:
    """A subscription's figures as plain values; a `SubscriptionView`."""

    id: str
    topic: str
    name: str = ""
    durable: bool = False
    journaled: bool = False
    prefetch: int = 0
    backlog_bytes: int = 0
    backlog_messages: int = 0
    waiting_messages: int = 0
    outbox_bytes: int = 0
    outbox_messages: int = 0
    conflation_bytes: int = 0
    oldest_at: int = 0
    unacked_messages: int = 0
    unacked_since: int = 0
    acked_at: int = 0
    acked_messages: int = 0
    acked_mark: AckedMessagesMark | None = None
    window_full_since: int = 0
    window_full_count: int = 0
    blocked_since: int = 0
    paused: bool = False
    shared: bool = False
    rate_limited: bool = False
    pinned_bytes: int = 0

    def acked_before(self, until_ns: int) -> AckedMessagesMark | None:
        mark = self.acked_mark
        return mark if mark is not None and mark.at <= until_ns else None


@dataclass(frozen=True, slots=True)
class ClientSignals:
    """A client's figures at one time, with its own backlog; a `ClientView` and a `BacklogView`."""

    name: str
    transport: str
    pool_name: str
    memory: int = 0
    outbox_messages: int = 0
    disk: int = 0
    spool_messages: int = 0
    oldest_at: int = 0
    unacked_at: int = 0
    is_offlined: bool = False
    blocked_since: int = 0
    unjournaled_messages: int = 0
    resume_bookmark: str = ""
    samples: tuple[ClientSample, ...] = ()
    user: str = ""
    offlined_at: int = 0
    conflation_bytes: int = 0
    acked_bytes: int = 0
    window_step_bytes: int = 0
    owed_messages: int = 0
    owed_bytes: int = 0
    waiting_messages: int = 0
    behind_since: int = 0
    subscriptions: tuple[SubscriptionView, ...] = ()
    rule_states: RuleStates = field(default_factory=dict)
    connection_number: int = 0
    pinned_bytes: int = 0
    user_pinned_bytes: int = 0

    @property
    def backlog(self) -> BacklogView:
        return self

    @property
    def messages(self) -> int:
        return self.outbox_messages

    def update_progress(self) -> None:
        pass

    def count_messages(self) -> BacklogCounts:
        return BacklogCounts(
            self.outbox_messages, self.spool_messages, self.unjournaled_messages, self.resume_bookmark
        )

    def acked_at(self, until_ns: int) -> AckedMark | None:
        known = [AckedMark(sample.at, sample.acked_bytes) for sample in self.samples]
        return max((mark for mark in known if mark.at <= until_ns), default=None)

    def recent_samples(self, now_ns: int) -> tuple[ClientSample, ...]:
        return self.samples


def evaluate(
    rules: RuleBook, clients: Iterable[ClientSignals | ClientUsage], pools: Iterable[PoolSignals], now_ns: int
) -> JudgeResult:
    """Evaluate the rules of a book for these clients and pools at one time."""
    return judge([_with_rules(rules, client) for client in clients], rules.pool_rules, list(pools), now_ns)


def _with_rules(rules: RuleBook, client: ClientSignals | ClientUsage) -> ClientUnderRules:
    of_client = RuleSubject(client.transport, client.user, client.name)
    narrow = []
    for one in client.subscriptions:
        subject = of_client._replace(topic=one.topic, subscription=one.id, name=one.name)
        if found := rules.subscription_rules_for(subject, durable=one.durable, prefetch=one.prefetch):
            narrow.append(RuledSubscriptionView(one, found))
    return ClientUnderRules(client, rules.client_rules_for(of_client), narrow)
