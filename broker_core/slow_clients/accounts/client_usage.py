"""What the guard knows of one subscription besides its figures: which rules look at it, and when to ask them at once.

What one client takes of its pool, and its recent history. Plain numbers, kept exact by the guard.
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
from broker_core.slow_clients.evaluate.rule_state import NO_HOLD, RuleState, needs_check, quiet_limit
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
    Holds,
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
    """A subscription that the guard was told of. The guard alone writes it, also when a policy comes into force; whoever
    subscribed asks `SlowClientGuard.waiting` when its backlog passes an alarm."""

    __slots__ = ("_trail", "alarm_bytes", "alarm_messages", "rules", "view")

    def __init__(self, view: SubscriptionView) -> None:
        self.view = view
        self.rules: tuple[Rule, ...] = ()
        """Those that look at it; none: nobody need measure it."""
        self.alarm_messages = UNLIMITED
        """With a `backlog_messages` greater than this there is something to judge at once."""
        self.alarm_bytes = UNLIMITED
        """The same of `backlog_bytes`."""
        self._trail: TimeSeries | None = None

    @property
    def has_rules(self) -> bool:
        """Whether any rule looks at it."""
        return bool(self.rules)

    @property
    def is_over_alarm(self) -> bool:
        """Whether there is something to judge at once."""
        view = self.view
        return view.backlog_messages > self.alarm_messages or view.backlog_bytes > self.alarm_bytes

    def needs_judging(self, client: ClientView, now_ns: int) -> bool:
        """Look at it: whether a rule that remembers nothing of it should be asked. What was read is kept for a while."""
        values = [subscription_value(rule, client, self.view, now_ns) for rule in self.rules]
        self._trail = append_sample(self._trail, now_ns, values)
        return self._trail is not None and any(map(needs_check, self.rules, values))

    def forecast_inputs(self, client: ClientView, now_ns: int) -> Iterator[ForecastInput]:
        """What each of its rules sees of it, for forecasts."""
        identity = self.view.id
        for place, rule in enumerate(self.rules):
            value = subscription_value(rule, client, self.view, now_ns)
            hold = client.rule_states.get((rule.name, identity), NO_HOLD)
            points = series_points(self._trail, place, value, now_ns)
            yield ForecastInput(rule, value, hold, points, identity, exemption_reason(rule, client.name))

    def set_rules(self, rules: tuple[Rule, ...]) -> None:
        """These rules look at it from now on."""
        self.rules = rules
        self._trail = None
        messages = nbytes = UNLIMITED
        for rule in rules:
            if rule.at_enqueue:
                # What waits in memory is part of the backlog: passing a limit of it, the backlog has passed it too.
                if rule.unit is Unit.MESSAGES:
                    messages = min(messages, rule.limit)
                else:
                    nbytes = min(nbytes, rule.limit)
        self.alarm_messages, self.alarm_bytes = messages, nbytes


@dataclass(slots=True, eq=False)
class ClientUsage:
    """What a client takes from its pool. Only the guard writes it; everybody may read. The judge sees it as a client.

    `memory_alarm` and `disk_alarm` are the one number each that the hot path compares with: the client's
    limit, or the bound up to which its place in the pool's ranking is good, whichever is lower.
    """

    name: str
    transport: str
    user: str
    backlog: BacklogView
    pool: Pool
    connection_number: int
    user_holds: Callable[[str], int]
    """By a client's name: bytes of the log that its user's pins hold."""
    memory: int = 0
    disk: int = 0
    memory_alarm: int = 0
    disk_alarm: int = 0
    is_offlined: bool = False
    offlined_at: int = 0
    closing: bool = False
    rules: tuple[Rule, ...] = ()
    beyond: bool = False
    """Whether a rule may be passed while nothing of it is in memory or on disk."""
    rates: tuple[Rule, ...] = ()
    limits: ClientLimits = NO_LIMITS
    fresh: ClientLimits = NO_LIMITS
    """The lowest limits of rules judged at enqueue that haven't acted on what the client holds now."""
    history: SampleHistory | None = None
    rule_states: dict[tuple[str, str], RuleState] = field(default_factory=dict)
    watched: dict[str, WatchedSubscription] = field(default_factory=dict)
    """Its subscriptions by their ids."""
    narrow: dict[str, WatchedSubscription] = field(default_factory=dict)
    """Those that rules look at."""
    _reads: tuple[tuple[OfClient, Rule], ...] = ()
    """Those of its rules that its limits don't say all of, each with what reads its signal."""
    _calm: tuple[int, ...] = ()
    """For each of these the value up to which it needn't be asked."""
    _places: tuple[int, ...] = ()
    """Of those of these whose signal its samples don't have."""
    _trail: TimeSeries | None = None

    @property
    def subject(self) -> RuleSubject:
        """Whom scopes are matched with."""
        return RuleSubject(self.transport, self.user, self.name)

    def subject_of(self, view: SubscriptionView) -> RuleSubject:
        """The same of one of its subscriptions."""
        return RuleSubject(self.transport, self.user, self.name, view.topic, view.id, view.name)

    def rules_for(self, book: RuleBook, view: SubscriptionView) -> tuple[Rule, ...]:
        """A book's rules for one of its subscriptions."""
        return book.rules_of_subscription(self.subject_of(view), durable=view.durable, prefetch=view.prefetch)

    def set_rules(self, rules: tuple[Rule, ...]) -> None:
        """These are its rules from now on."""
        self.rules = rules
        self.limits = client_limits(rules)
        self.beyond = can_fire_without_backlog(rules)
        self.rates = tuple(rule for rule in rules if rule.shape is Shape.RATE_BELOW)
        asked = [rule for rule in rules if not is_client_limit(rule)]
        self._places = tuple(
            place
            for place, rule in enumerate(asked)
            if READINGS[rule.signal].column is None and rule.shape is not Shape.RATE_BELOW
        )
        self._reads = tuple((OF_CLIENT[rule.signal], rule) for rule in asked)
        self._calm = tuple(map(quiet_limit, asked))
        self._trail = None

    def set_subscription_rules(self, watched: WatchedSubscription, rules: tuple[Rule, ...]) -> None:
        """These are the rules of one of its subscriptions from now on."""
        watched.set_rules(rules)
        if rules:
            self.narrow[watched.view.id] = watched
        else:
            self.narrow.pop(watched.view.id, None)

    def has_rule_state(self, watched: WatchedSubscription) -> bool:
        """Whether rules remember something of one of its subscriptions: it may be within their limits again."""
        return bool(self.rule_states and self.rule_state_of(watched.view.id, watched.rules))

    def rule_state_of(self, identity: str, rules: tuple[Rule, ...]) -> dict[str, RuleState]:
        """What these rules remember of one of its subscriptions, or with "" of itself."""
        return {
            rule.name: hold
            for rule in rules
            if (hold := self.rule_states.get((rule.name, identity))) is not None
        }

    def store_rule_state(self, holds: Holds) -> bool:
        """Take over what rules remember. True when its limits changed by it: it must be ranked anew."""
        before, known = self.fresh, self.rule_states.keys()
        self.rule_states = dict(holds)
        if holds.keys() != known:
            self.refresh_limits()
        return self.fresh != before

    def drop_rule_state(self, keys: Iterable[tuple[str, str]]) -> None:
        """What rules remembered of a subscription that has ended. Its client's own limits don't depend on that."""
        for key in keys:
            self.rule_states.pop(key, None)

    def refresh_limits(self) -> None:
        """Its limits, without those of rules that have acted already."""
        self.fresh = self.limits
        if self.rule_states:
            self.fresh = client_limits(rule for rule in self.rules if (rule.name, "") not in self.rule_states)

    def needs_judging(self, now_ns: int) -> bool:
        """Whether a rule that remembers nothing of it should be asked. Looking keeps what its samples don't have."""
        limits, stirred = self.limits, False
        if self._reads:
            values = [read(self, rule, now_ns) for read, rule in self._reads]
            if self._places:
                self._trail = append_sample(self._trail, now_ns, [values[place] for place in self._places])
            stirred = any(map(gt, values, self._calm))
            if self.rates and not stirred:
                stirred = any(
                    needs_check(rule, value) for (_, rule), value in zip(self._reads, values, strict=True)
                )
        return stirred or self.disk > limits.disk or (self.memory > limits.memory and not self.is_offlined)

    def forecast_inputs(self, now_ns: int) -> Iterator[ForecastInput]:
        """What each of its rules sees of it, for forecasts."""
        samples = tuple(self.recent_samples(now_ns))
        kept = [self._reads[place][1] for place in self._places]
        for rule in self.rules:
            value, column = client_value(rule, self, now_ns), READINGS[rule.signal].column
            if rule.shape is Shape.RATE_BELOW:
                taken = [(one.at, one.taken_bytes) for one in samples]
                points = past_rates(rule, taken, self.backlog.window_step_bytes)
            elif column is not None:
                points = [(one.at, one[column]) for one in samples]
            else:
                points = series_points(self._trail, kept.index(rule), value, now_ns)
            hold = self.rule_states.get((rule.name, ""), NO_HOLD)
            yield ForecastInput(rule, value, hold, points, spared=exemption_reason(rule, self.name))

    # As the judge reads a client.

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
    def pinned_bytes(self) -> int:
        return max((one.view.pinned_bytes for one in self.watched.values()), default=0)

    @property
    def user_pinned_bytes(self) -> int:
        return self.user_holds(self.name)

    def acked_at(self, until_ns: int) -> AckedMark | None:
        """The newest that is remembered of what the peer had taken, not newer than that."""
        return self.history.acked_at(until_ns) if self.history is not None else None

    def recent_samples(self, now_ns: int) -> SampleSequence:
        """The last 60 samples, the newest of now."""
        values = self.history.samples.newest(SAMPLES - 1) if self.history is not None else array("q")
        age = age_ms(self.backlog.oldest_at, now_ns)
        values.extend((now_ns, self.memory, self.disk, age, self.backlog.acked_bytes))
        return SampleSequence(values)
