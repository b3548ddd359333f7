"""Statistics of a subscription, read in one place: its account, lag and delivery state.

All figures of a subscription that the control plane shows come from `SubscriptionStats`, and all figures of a
client from those of its subscriptions. So no two figures can disagree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from broker_core.connections.connection_view import ConnectionView
from broker_core.delivery.account import DeliveryAccount, sum_accounts
from broker_core.delivery.lifecycle import ClientState
from broker_core.delivery.ports import MatchReceiver
from broker_core.documents.clients import DeliveryState
from broker_core.errors import JournalError
from broker_core.journal.journal import Journal
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.cursor import DurableFrontier
from broker_core.subscriptions.registry import SubscriptionRegistry

SPOOL_DELIVERY_STATES = {
    ClientState.OFFLINED: DeliveryState.OFFLINED,
    ClientState.DRAINING: DeliveryState.DRAINING,
}
FIRST_BATCH_BYTES = 1
"""Maximum bytes to read, so that only the first batch is read."""


class SubscriptionStats(NamedTuple):
    """Figures of a subscription at one moment. Times are ns; 0 for none."""

    account: DeliveryAccount
    delivery: DeliveryState
    paused: bool
    lag_messages: int
    """Records not sent yet: they wait, or its replay has not reached them."""
    lag_at_most: bool
    """Whether `lag_messages` is an upper bound.

    Records that its replay has not reached count with all topics, whether or not they match.
    """
    lag_bytes: int
    oldest_at: int
    """Time from which the age of the oldest waiting delivery counts."""
    behind_at: int
    """Time at which the oldest record not sent yet was accepted."""
    unacked: int
    window_full_since: int
    spent_since: int = 0
    """Time since which it waits for credit."""


class SubscriptionStatsReader:
    """Reader of statistics. Caches accept times that it read from the journal."""

    def __init__(
        self, journal: Journal, frontier: DurableFrontier, counted: SubscriptionRegistry[MatchReceiver]
    ) -> None:
        """Create a reader.

        `counted` has the subscriptions whose new records are counted as soon as they are matched.
        """
        self._journal = journal
        self._frontier = frontier
        self._counted = counted
        self._accepted: dict[ClientSubscription, tuple[int, int]] = {}

    def read_client(self, connection: ConnectionView) -> Iterator[tuple[str, SubscriptionStats]]:
        """Yield (id, statistics) of all subscriptions of a client, except those that end meanwhile."""
        connection.backlog.update_progress()
        oldest = _oldest_by_stream(connection)
        for id, target in list(connection.subscriptions.items()):
            if connection.subscriptions.get(id) is target:
                yield id, self._read_stats(connection, target, oldest.get(target.stream, 0))

    def drop_disconnected(self, connected: Mapping[str, ConnectionView]) -> None:
        """Drop data of clients that have disconnected."""
        for target in [one for one in self._accepted if connected.get(one.peer.name) is not one.peer]:
            del self._accepted[target]

    def _read_stats(
        self, connection: ConnectionView, target: ClientSubscription, oldest_at: int
    ) -> SubscriptionStats:
        """Read the statistics of a subscription."""
        queue, account = connection.backlog.queues.get(target.stream), target.account
        waiting = account.waiting
        unmatched = self._count_unmatched(target)
        lag = waiting.messages + unmatched
        return SubscriptionStats(
            account=account,
            delivery=SPOOL_DELIVERY_STATES.get(connection.backlog.state) or _live_delivery_state(target),
            paused=is_paused(target),
            lag_messages=lag,
            lag_at_most=unmatched > 0,
            lag_bytes=waiting.nbytes,
            oldest_at=oldest_at,
            behind_at=self._accepted_at(target, lag) if target.cursor.is_behind else oldest_at,
            unacked=account.in_flight.messages if connection.backlog.has_ack_window(target.stream) else 0,
            window_full_since=queue.full_since if queue is not None else 0,
            spent_since=queue.spent_since if queue is not None and lag else 0,
        )

    def _count_unmatched(self, target: ClientSubscription) -> int:
        """Return the number of records that the replay has not reached and that were not matched yet.

        0 for a subscription that was live before, because its records are matched as they arrive.
        """
        cursor, goal = target.cursor, self._frontier.durable
        if not cursor.is_behind or not cursor.has_reached_start or self._counted.has(target.subscription):
            return 0
        if cursor.span is not None:
            goal = min(goal, cursor.span.last)
        return max(goal - max(cursor.next_sequence, target.account.last_matched + 1) + 1, 0)

    def _accepted_at(self, target: ClientSubscription, lag: int) -> int:
        """Return when the record at the subscription's position in the log was accepted, ns.

        A moving subscription has recorded the time. For a paused one it is read from the journal, once.
        """
        if not lag:
            return 0
        if target.recorded_at and not target.cursor.is_paused:
            return target.recorded_at
        at = target.position(self._frontier.durable)
        known = self._accepted.get(target)
        if known is None or known[0] != at:
            known = self._accepted[target] = (at, self._read_accepted_at(at))
        return known[1]

    def _read_accepted_at(self, sequence: int) -> int:
        """Read from the journal when a record was accepted, ns; 0 if it cannot be read."""
        journal = self._journal
        try:
            batches = journal.read(
                max(sequence, journal.first_sequence), FIRST_BATCH_BYTES, self._frontier.durable
            )
        except JournalError:
            return 0  # just removed; the replay reports it
        return batches[0].accepted_at if batches else 0


def _oldest_by_stream(connection: ConnectionView) -> dict[int, int]:
    """Return the time from which the age of the oldest waiting delivery counts, ns, by stream."""
    backlog, oldest_by_stream = connection.backlog, dict[int, int]()
    for entry in backlog.outbox:
        oldest_by_stream.setdefault(entry.stream, entry.accepted_at)
    for stream, queue in backlog.queues.nonempty.items():
        oldest_by_stream[stream] = min(oldest_by_stream.get(stream, queue.oldest_at), queue.oldest_at)
    if backlog.offline is not None:
        oldest = backlog.offline.chunk_oldest_at or backlog.offline.spool.oldest_at
        for stream, tally in backlog.offline.tallies().items():
            if tally.messages:
                oldest_by_stream[stream] = min(oldest_by_stream.get(stream, oldest), oldest)
    return oldest_by_stream


def client_account(connection: ConnectionView, figures: Collection[SubscriptionStats]) -> DeliveryAccount:
    """Return a client's account: the sum over its subscriptions, including those that have ended."""
    accounts, ended = [one.account for one in figures], connection.backlog.ended_account
    if len(accounts) == 1 and not ended.matched.messages:
        return accounts[0]
    return sum_accounts((ended, *accounts))


def is_paused(target: ClientSubscription) -> bool:
    """Return whether a subscription is paused by its client, an operator or a policy."""
    queue = target.peer.backlog.queues.get(target.stream)
    return target.cursor.is_paused or (queue is not None and queue.paused)


def _live_delivery_state(target: ClientSubscription) -> DeliveryState:
    """Return the delivery state of a subscription whose client is live."""
    if is_paused(target):
        return DeliveryState.PAUSED
    return DeliveryState.REPLAYING if target.cursor.is_behind else DeliveryState.LIVE


def delivery_state(connection: ConnectionView) -> DeliveryState:
    """Return the delivery state of a client.

    It is the state of one of its subscriptions, if there is any. Offlined and draining are states of the
    client, because one spool serves all its subscriptions.
    """
    if (spool_state := SPOOL_DELIVERY_STATES.get(connection.backlog.state)) is not None:
        return spool_state
    states = {_live_delivery_state(target) for target in connection.subscriptions.values()}
    if DeliveryState.REPLAYING in states:
        return DeliveryState.REPLAYING
    return DeliveryState.PAUSED if states == {DeliveryState.PAUSED} else DeliveryState.LIVE
