"""Live subscription as rules see it. Each figure is read from its account, queue and cursor on demand."""

from __future__ import annotations

from collections import deque
from typing import Final

from broker_core.config.rule_terms import MAX_ACKNOWLEDGED_RATE_WINDOW_MS
from broker_core.connections.connection_view import ConnectionView
from broker_core.delivery.account import MessageVolume
from broker_core.delivery.subscription_queues import SubscriptionQueue
from broker_core.journal.journal import Journal
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.slow_clients.evaluate.signals import AckedMessagesMark

MARK_NS: Final = 1_000_000_000
"""Time of which at most two totals of acknowledged messages are kept."""
MAX_MARKS: Final = 2 * MAX_ACKNOWLEDGED_RATE_WINDOW_MS // 1_000 + 4


class LiveSubscriptionView:
    """View of a live subscription. Implements `slow_clients.evaluate.signals.SubscriptionView`."""

    def __init__(
        self, connection: ConnectionView, target: ClientSubscription, prefetch: int, journal: Journal
    ) -> None:
        self.target = target
        self._journal = journal
        self._backlog = connection.backlog
        self.id, self.topic = target.id, target.topic
        self.name, self.durable = target.durable, bool(target.durable)
        self.journaled = target.is_bookmark_subscription
        self.prefetch = prefetch
        self.last_ack_at = 0
        """Time of the client's last acknowledgement, ns."""
        self._acked_marks: deque[AckedMessagesMark] = deque(maxlen=MAX_MARKS)
        """Totals of acknowledged messages, oldest first. The last one is exact."""
        self.acked = False
        """Whether the client has acknowledged since the subscription was last judged."""

    @property
    def _queue(self) -> SubscriptionQueue | None:
        """The subscription's own queue; None while it has none."""
        return self._backlog.queues.get(self.target.stream)

    @property
    def _served_by_log(self) -> bool:
        """Whether rules ignore its backlog, because it reads from the log what the socket does not accept.

        Such a subscription makes no client slow (seed 002). False with an acknowledgement window, because
        then the application reports its own progress.
        """
        return self.target.can_fall_back and not self.prefetch

    @property
    def _outstanding(self) -> MessageVolume:
        """Messages that wait or are in flight."""
        return self._backlog.get_outstanding(self.target)

    @property
    def backlog_bytes(self) -> int:
        return self._outstanding.nbytes

    @property
    def backlog_messages(self) -> int:
        return self._outstanding.messages

    @property
    def waiting_messages(self) -> int:
        return self.target.account.waiting.messages

    @property
    def outbox_bytes(self) -> int:
        return self._backlog.get_queued(self.target.stream)[1] if not self._served_by_log else 0

    @property
    def outbox_messages(self) -> int:
        return self._backlog.get_queued(self.target.stream)[0] if not self._served_by_log else 0

    @property
    def conflation_bytes(self) -> int:
        return self.target.conflating.nbytes if self.target.conflating is not None else 0

    @property
    def oldest_at(self) -> int:
        if self._served_by_log:
            return 0
        stream, spool = self.target.stream, self._backlog.spool
        spooled = spool is not None and (tally := spool.tallies.get(stream)) is not None and tally.messages
        waits = self._backlog.oldest_at if spooled else self._backlog.get_queued(stream)[2]
        return min((at for at in (waits, self._unacked_at) if at), default=0)

    @property
    def _unacked_at(self) -> int:
        """Time from which the age of the oldest delivered, unacknowledged message counts, ns; 0 if none."""
        queue = self._queue
        if queue is not None and queue.window is not None:
            return queue.window.oldest_accepted_at
        return (
            self._backlog.in_flight.get_oldest(self.target.stream)
            if self.target.account.in_flight.messages
            else 0
        )

    @property
    def unacked_messages(self) -> int:
        return self.target.account.in_flight.messages if self.prefetch else 0

    @property
    def unacked_since(self) -> int:
        queue = self._queue
        return queue.window.oldest_at if queue is not None and queue.window is not None else 0

    @property
    def acked_at(self) -> int:
        queue = self._queue
        unacked_since = queue.window.unacked_since if queue is not None and queue.window is not None else 0
        return max(self.last_ack_at, unacked_since)

    @property
    def acked_messages(self) -> int:
        return self.target.account.acknowledged.messages

    def acked_before(self, until_ns: int) -> AckedMessagesMark | None:
        return next((mark for mark in reversed(self._acked_marks) if mark.at <= until_ns), None)

    def mark_acknowledged(self, now_ns: int) -> None:
        """Record the number of acknowledged messages. Of those within a second, the newest is kept."""
        marks, mark = self._acked_marks, AckedMessagesMark(now_ns, self.acked_messages)
        if len(marks) >= 2 and now_ns - marks[-2].at < MARK_NS:
            marks[-1] = mark
        else:
            marks.append(mark)

    @property
    def window_full_since(self) -> int:
        queue = self._queue
        return queue.full_since if queue is not None else 0

    @property
    def window_full_count(self) -> int:
        queue = self._queue
        return queue.times_full if queue is not None else 0

    @property
    def blocked_since(self) -> int:
        if self._served_by_log:
            return 0
        account = self.target.account
        due = account.waiting.messages or (not self.prefetch and account.in_flight.messages)
        return self._backlog.get_blocked_since(self.target.stream) if due else 0

    @property
    def paused(self) -> bool:
        queue = self._queue
        return self.target.cursor.is_paused or (queue is not None and queue.paused)

    @property
    def shared(self) -> bool:
        return self.target.is_shared

    @property
    def rate_limited(self) -> bool:
        return self.target.rate is not None

    @property
    def pinned_bytes(self) -> int:
        pinned_from = self.target.pinned_from
        return self._journal.bytes_pinned_from(pinned_from) if pinned_from is not None else 0
