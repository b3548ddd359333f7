"""What policy is told about single subscriptions. Figures are written when something happened to them, in place.

Only subscriptions that a rule looks at are measured (`SubscriptionSignals.judged`); each of those has a lane, so that
what waits for it is known apart from its neighbours'. For the others this costs one look at an empty dictionary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_core.slow_clients.signals import SubscriptionSignals

if TYPE_CHECKING:
    from broker_core.runtime.client_subscription import ClientSubscription
    from broker_core.runtime.connection import Connection


class Measuring:
    """One client's subscriptions as policy sees them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.judged: dict[int, ClientSubscription] = {}
        self.touched: set[int] = set()
        """Streams of judged subscriptions that were offered something since the last look."""

    def begin(self, target: ClientSubscription, prefetch: int) -> None:
        """A subscription begins; before anything is offered to it."""
        account = self._connection.account
        if account is None:
            return
        target.signals = SubscriptionSignals(
            target.subscription.id, target.topic, name=target.durable, durable=bool(target.durable),
            journaled=target.journaled_only, prefetch=prefetch,
        )
        self._connection.host.judging.guard.subscribe(account, target.signals)
        self._heed(target)

    def end(self, target: ClientSubscription) -> None:
        """A subscription has ended."""
        self.judged.pop(target.subscription.stream, None)
        self.touched.discard(target.subscription.stream)
        if self._connection.account is not None and not self._connection.closed:
            self._connection.host.judging.guard.unsubscribe(self._connection.account, target.subscription.id)

    def refresh(self) -> None:
        """The rules have changed."""
        for target in self._connection.subscriptions.values():
            self._heed(target)

    def _heed(self, target: ClientSubscription) -> None:
        stream = target.subscription.stream
        if target.signals is not None and target.signals.judged:
            self.judged[stream] = target
            self._connection.backlog.lane(stream)
            self.touched.add(stream)
        else:
            self.judged.pop(stream, None)

    def look(self) -> None:
        """Tell policy what changed since the last look, and carry out what it decides."""
        judging, account = self._connection.host.judging, self._connection.account
        touched, self.touched = self.touched, set()
        now = self._connection.host.now_ns()
        for stream in touched:
            target = self.judged.get(stream)
            if target is None or target.signals is None or account is None or self._connection.closed:
                continue
            self._measure(target, target.signals, now)
            signals = target.signals
            if signals.backlog_messages > signals.alarm_messages or signals.backlog_bytes > signals.alarm_bytes:
                decision = judging.guard.waiting(account, signals, now)
                if decision is not None:
                    judging.carry_out(decision)

    def acknowledged(self, stream: int) -> None:
        """A subscription's client has acknowledged messages."""
        judging, account = self._connection.host.judging, self._connection.account
        target = self.judged.get(stream)
        if target is None or target.signals is None or account is None:
            return
        now = self._connection.host.now_ns()
        target.signals.acked_at = now
        self._measure(target, target.signals, now)
        for decision in judging.guard.acknowledged(account, target.signals, now):
            judging.carry_out(decision)

    def _measure(self, target: ClientSubscription, signals: SubscriptionSignals, now: int) -> None:
        backlog, stream = self._connection.backlog, target.subscription.stream
        lane = backlog.lanes[stream]
        lane.look(now)
        on_disk = backlog.spool.tallies.get(stream) if backlog.spool is not None else None
        signals.outbox_bytes, signals.outbox_messages = lane.nbytes, lane.messages
        signals.backlog_bytes = lane.nbytes + (on_disk.nbytes if on_disk is not None else 0)
        signals.backlog_messages = lane.messages + (on_disk.messages if on_disk is not None else 0)
        signals.oldest_at = backlog.oldest_at if on_disk is not None and on_disk.messages else lane.oldest_at
        signals.paused, signals.replaying = lane.paused or target.paused, target.replaying
        signals.rate_limited = target.rate is not None
        if lane.times_full > signals.window_full_count:
            self._connection.host.events.add(now, self._connection.name, "slow", backlog.state.value)
        signals.window_full_since, signals.window_full_count = lane.full_since, lane.times_full
        if lane.window is not None:
            if lane.window.unacked and not signals.unacked_messages:
                signals.acked_at = max(signals.acked_at, now)
            signals.unacked_messages, signals.unacked_since = lane.window.unacked, lane.window.oldest_at
