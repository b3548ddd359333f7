"""What the guard knows of one subscription besides its figures: which rules look at it, and when to ask them at once."""

from __future__ import annotations

from collections.abc import Iterator

from broker_core.config.rule_terms import Unit
from broker_core.slow_clients.evaluate.forecast import Seen
from broker_core.slow_clients.evaluate.holds import NO_HOLD, wakes
from broker_core.slow_clients.evaluate.judge import spared
from broker_core.slow_clients.evaluate.signal_table import of_subscription
from broker_core.slow_clients.evaluate.signals import ClientView, SubscriptionView
from broker_core.slow_clients.evaluate.trail import Trail, extended, points_of
from broker_core.slow_clients.rules.rule import UNLIMITED, Rule


class Watched:
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
        self._trail: Trail | None = None

    @property
    def judged(self) -> bool:
        """Whether any rule looks at it."""
        return bool(self.rules)

    @property
    def alarmed(self) -> bool:
        """Whether there is something to judge at once."""
        view = self.view
        return view.backlog_messages > self.alarm_messages or view.backlog_bytes > self.alarm_bytes

    def stirs(self, client: ClientView, now_ns: int) -> bool:
        """Look at it: whether a rule that remembers nothing of it should be asked. What was read is kept for a while."""
        values = [of_subscription(rule, client, self.view, now_ns) for rule in self.rules]
        self._trail = extended(self._trail, now_ns, values)
        return self._trail is not None and any(map(wakes, self.rules, values))

    def seen(self, client: ClientView, now_ns: int) -> Iterator[Seen]:
        """What each of its rules sees of it, for forecasts."""
        identity = self.view.id
        for place, rule in enumerate(self.rules):
            value = of_subscription(rule, client, self.view, now_ns)
            hold = client.holds.get((rule.name, identity), NO_HOLD)
            points = points_of(self._trail, place, value, now_ns)
            yield Seen(rule, value, hold, points, identity, spared(rule, client.name))

    def give(self, rules: tuple[Rule, ...]) -> None:
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
