"""Use and recent history of one client, and the rules about it and its subscriptions.

The figures are plain numbers, which the guard keeps exact.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import gt

from broker_core.config.rule_terms import Shape, Unit
from broker_core.slow_clients.accounts.pools import Pool
from broker_core.slow_clients.evaluate.forecast import ForecastInput, past_rates
from broker_core.slow_clients.evaluate.judge import exemption_reason
from broker_core.slow_clients.evaluate.rule_state import NO_STATE, RuleState, needs_check, quiet_limit
from broker_core.slow_clients.evaluate.samples import (
    SampleHistory,
    SampleSequence,
    TimeSeries,
    append_sample,
    series_points,
)
from broker_core.slow_clients.evaluate.signal_table import (
    OF_CLIENT,
    READINGS,
    OfClient,
    can_fire_without_backlog,
    client_value,
    subscription_value,
)
from broker_core.slow_clients.evaluate.signals import (
    AckedMark,
    BacklogView,
    ClientView,
    RuleStates,
    SubscriptionView,
    age_ms,
)
from broker_core.slow_clients.rules.rule import (
    NO_LIMITS,
    SAMPLES,
    UNLIMITED,
    ClientLimits,
    Rule,
    client_limits,
    is_client_limit,
)
from broker_core.slow_clients.rules.rulebook import RuleBook
from broker_core.slow_clients.rules.scopes import RuleSubject


class WatchedSubscription:
    """Subscription that is registered with the guard. Only the guard modifies it.

    The owner of the subscription calls `SlowClientGuard.judge_subscription` when the backlog passes an alarm.
    """

    __slots__ = ("_values", "alarm_bytes", "alarm_messages", "rules", "view")

    def __init__(self, view: SubscriptionView) -> None:
        self.view = view
        self.rules: tuple[Rule, ...] = ()
        """Rules about this subscription. Without any, its backlog does not have to be measured."""
        self.alarm_messages = UNLIMITED
        """With more backlog messages than this, a rule must be judged immediately."""
        self.alarm_bytes = UNLIMITED
        """With more backlog bytes than this, a rule must be judged immediately."""
        self._values: TimeSeries | None = None

    @property
    def has_rules(self) -> bool:
        """Whether any rule applies to this subscription."""
        return bool(self.rules)

    @property
    def is_over_alarm(self) -> bool:
        """Whether the backlog is over an alarm, so that a rule must be judged immediately."""
        view = self.view
        return view.backlog_messages > self.alarm_messages or view.backlog_bytes > self.alarm_bytes

    def needs_judging(self, client: ClientView, now_ns: int) -> bool:
        """Sample the signals of all rules; return whether a rule without state needs a check.

        The values are stored for forecasts.
        """
        values = [subscription_value(rule, client, self.view, now_ns) for rule in self.rules]
        self._values = append_sample(self._values, now_ns, values)
        return self._values is not None and any(map(needs_check, self.rules, values))

    def forecast_inputs(self, client: ClientView, now_ns: int) -> Iterator[ForecastInput]:
        """Yield the value, state and history of each of the subscription's rules, for forecasts."""
        identity = self.view.id
        for index, rule in enumerate(self.rules):
            value = subscription_value(rule, client, self.view, now_ns)
            state = client.rule_states.get((rule.name, identity), NO_STATE)
            points = series_points(self._values, index, value, now_ns)
            yield ForecastInput(rule, value, state, points, identity, exemption_reason(rule, client.name))

    def set_rules(self, rules: tuple[Rule, ...]) -> None:
        """Replace the rules about this subscription."""
        self.rules = rules
        self._values = None
        messages = nbytes = UNLIMITED
        for rule in rules:
            if rule.at_enqueue:
                # Messages in memory are part of the backlog. When they exceed a limit, the backlog does too.
                if rule.unit is Unit.MESSAGES:
                    messages = min(messages, rule.limit)
                else:
                    nbytes = min(nbytes, rule.limit)
        self.alarm_messages, self.alarm_bytes = messages, nbytes


@dataclass(slots=True, eq=False)
class ClientUsage:
    """Use of its pool by one client. Only the guard modifies it; the judge reads it as a `ClientView`.

    `memory_alarm` and `disk_alarm` are the only two numbers that the hot path compares with. Each is the
    client's limit, or the use up to which its rank in the pool is valid, whichever is lower.
    """

    name: str
    transport: str
    user: str
    backlog: BacklogView
    pool: Pool
    connection_number: int
    get_user_pinned_bytes: Callable[[str], int]
    """Function from a client's name to the bytes of the log that its user's pins retain."""
    memory: int = 0
    disk: int = 0
    memory_alarm: int = 0
    disk_alarm: int = 0
    is_offlined: bool = False
    offlined_at: int = 0
    is_closing: bool = False
    rules: tuple[Rule, ...] = ()
    fires_without_backlog: bool = False
    """Whether a rule can fire while nothing is in memory or on disk."""
    rate_rules: tuple[Rule, ...] = ()
    """Rules with the shape RATE_BELOW."""
    limits: ClientLimits = NO_LIMITS
    """Lowest limits of the rules judged at enqueue."""
    unacted_limits: ClientLimits = NO_LIMITS
    """Lowest limits of the rules judged at enqueue that have not acted on the present backlog."""
    history: SampleHistory | None = None
    rule_states: dict[tuple[str, str], RuleState] = field(default_factory=dict)
    watched: dict[str, WatchedSubscription] = field(default_factory=dict)
    """Subscriptions by id."""
    ruled_subscriptions: dict[str, WatchedSubscription] = field(default_factory=dict)
    """Subscriptions with rules, by id."""
    _signal_readers: tuple[tuple[OfClient, Rule], ...] = ()
    """Rules that `limits` does not fully express, each with the function that reads its signal."""
    _quiet_limits: tuple[int, ...] = ()
    """For each entry of `_signal_readers`, the greatest value that does not require a check."""
    _sampled_indexes: tuple[int, ...] = ()
    """Indexes in `_signal_readers` of rules whose signal is not in the client's samples."""
    _values: TimeSeries | None = None
    """Recent values of the rules at `_sampled_indexes`."""

    @property
    def subject(self) -> RuleSubject:
        """Subject with which scopes are matched."""
        return RuleSubject(self.transport, self.user, self.name)

    def subject_for(self, view: SubscriptionView) -> RuleSubject:
        """Return the subject of one subscription, with which scopes are matched."""
        return RuleSubject(self.transport, self.user, self.name, view.topic, view.id, view.name)

    def rules_for(self, book: RuleBook, view: SubscriptionView) -> tuple[Rule, ...]:
        """Return a book's rules for one of the client's subscriptions."""
        return book.subscription_rules_for(
            self.subject_for(view), durable=view.durable, prefetch=view.prefetch
        )

    def set_rules(self, rules: tuple[Rule, ...]) -> None:
        """Replace the rules about the client."""
        self.rules = rules
        self.limits = client_limits(rules)
        self.fires_without_backlog = can_fire_without_backlog(rules)
        self.rate_rules = tuple(rule for rule in rules if rule.shape is Shape.RATE_BELOW)
        tick_rules = [rule for rule in rules if not is_client_limit(rule)]
        self._sampled_indexes = tuple(
            index
            for index, rule in enumerate(tick_rules)
            if READINGS[rule.signal].sample_column is None and rule.shape is not Shape.RATE_BELOW
        )
        self._signal_readers = tuple((OF_CLIENT[rule.signal], rule) for rule in tick_rules)
        self._quiet_limits = tuple(map(quiet_limit, tick_rules))
        self._values = None

    def set_subscription_rules(self, watched: WatchedSubscription, rules: tuple[Rule, ...]) -> None:
        """Replace the rules about one of the client's subscriptions."""
        watched.set_rules(rules)
        if rules:
            self.ruled_subscriptions[watched.view.id] = watched
        else:
            self.ruled_subscriptions.pop(watched.view.id, None)

    def has_rule_state(self, watched: WatchedSubscription) -> bool:
        """Return whether rules have state for a subscription.

        If so, it must be judged even without a passed alarm, because it may be within its limits again.
        """
        return bool(self.rule_states and self.rule_states_for(watched.view.id, watched.rules))

    def rule_states_for(self, identity: str, rules: tuple[Rule, ...]) -> dict[str, RuleState]:
        """Return the states of these rules about one subscription, or about the client for ""."""
        return {
            rule.name: state
            for rule in rules
            if (state := self.rule_states.get((rule.name, identity))) is not None
        }

    def store_rule_state(self, rule_states: RuleStates) -> bool:
        """Replace all rule states; return whether the client's limits changed.

        The caller must then rank the client again.
        """
        before, known = self.unacted_limits, self.rule_states.keys()
        self.rule_states = dict(rule_states)
        if rule_states.keys() != known:
            self.refresh_limits()
        return self.unacted_limits != before

    def drop_rule_state(self, keys: Iterable[tuple[str, str]]) -> None:
        """Remove the states of rules about a closed subscription.

        The client's own limits do not depend on them.
        """
        for key in keys:
            self.rule_states.pop(key, None)

    def refresh_limits(self) -> None:
        """Recompute `unacted_limits`: the limits without those of rules that have acted."""
        self.unacted_limits = self.limits
        if self.rule_states:
            self.unacted_limits = client_limits(
                rule for rule in self.rules if (rule.name, "") not in self.rule_states
            )

    def needs_judging(self, now_ns: int) -> bool:
        """Return whether a rule without state needs a check. Stores values that the samples lack."""
        limits, needs_check_now = self.limits, False
        if self._signal_readers:
            values = [read(self, rule, now_ns) for read, rule in self._signal_readers]
            if self._sampled_indexes:
                self._values = append_sample(
                    self._values, now_ns, [values[index] for index in self._sampled_indexes]
                )
            needs_check_now = any(map(gt, values, self._quiet_limits))
            if self.rate_rules and not needs_check_now:
                needs_check_now = any(
                    needs_check(rule, value)
                    for (_, rule), value in zip(self._signal_readers, values, strict=True)
                )
        return (
            needs_check_now
            or self.disk > limits.disk
            or (self.memory > limits.memory and not self.is_offlined)
        )

    def forecast_inputs(self, now_ns: int) -> Iterator[ForecastInput]:
        """Yield the value, state and history of each of the client's rules, for forecasts."""
        samples = tuple(self.recent_samples(now_ns))
        sampled_rules = [self._signal_readers[index][1] for index in self._sampled_indexes]
        for rule in self.rules:
            value, column = client_value(rule, self, now_ns), READINGS[rule.signal].sample_column
            if rule.shape is Shape.RATE_BELOW:
                acked = [(one.at, one.acked_bytes) for one in samples]
                points = past_rates(rule, acked, self.backlog.window_step_bytes)
            elif column is not None:
                points = [(one.at, one[column]) for one in samples]
            else:
                points = series_points(self._values, sampled_rules.index(rule), value, now_ns)
            state = self.rule_states.get((rule.name, ""), NO_STATE)
            yield ForecastInput(rule, value, state, points, exemption=exemption_reason(rule, self.name))

    # Members of `ClientView`, for the judge.

    @property
    def pool_name(self) -> str:
        return self.pool.name

    @property
    def behind_since(self) -> int:
        return self.history.behind_since if self.history is not None else 0

    @property
    def subscriptions(self) -> tuple[SubscriptionView, ...]:
        return tuple([one.view for one in self.watched.values()])

    @property
    def conflation_bytes(self) -> int:
        return sum(one.view.conflation_bytes for one in self.watched.values())

    @property
    def waiting_messages(self) -> int:
        return sum(one.view.waiting_messages for one in self.watched.values())

    @property
    def pinned_bytes(self) -> int:
        return max((one.view.pinned_bytes for one in self.watched.values()), default=0)

    @property
    def user_pinned_bytes(self) -> int:
        return self.get_user_pinned_bytes(self.name)

    def acked_at(self, until_ns: int) -> AckedMark | None:
        """Return the newest recorded `AckedMark` at or before `until_ns`; None if there is none."""
        return self.history.acked_at(until_ns) if self.history is not None else None

    def recent_samples(self, now_ns: int) -> SampleSequence:
        """Return at most 60 samples, oldest first; the last one is taken now."""
        values = self.history.samples.newest(SAMPLES - 1) if self.history is not None else array("q")
        age = age_ms(self.backlog.oldest_at, now_ns)
        values.extend((now_ns, self.memory, self.disk, age, self.backlog.acked_bytes))
        return SampleSequence(values)
