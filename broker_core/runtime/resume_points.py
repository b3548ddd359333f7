"""From where bookmark subscriptions may resume: a recent point even for a filter that rarely matches.

A subscription's resume point stands before the first record that it still has to get: in the log, held back, in the
outbox or in the spool. So whatever comes before it and matches has been handed to the client's socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from broker_core.runtime.backlog import Backlog
from broker_core.runtime.client_subscription import ClientSubscription
from broker_core.runtime.connection import Connection


def resume_points(
    subscriptions: Iterable[ClientSubscription], dispatched: int
) -> Iterator[tuple[ClientSubscription, int]]:
    """(subscription, the last sequence it is done with) of those whose point is known."""
    sent: dict[Connection, int] = {}
    for target in subscriptions:
        connection = target.connection
        if connection not in sent:
            sent[connection] = _sent_before(connection.backlog, dispatched)
        position = target.next_sequence - 1 if target.replaying else dispatched
        if target.held_from:
            position = min(position, target.held_from - 1)
        if target.begun:
            yield target, min(position, sent[connection])


def _sent_before(backlog: Backlog, dispatched: int) -> int:
    """Everything up to this sequence that was queued for a client has been sent; 0 when that isn't known."""
    spool = backlog.spool
    if spool is not None:
        return max(spool.first_sequence - 1, 0) if spool.messages else dispatched
    first = backlog.outbox.first_sequence
    return first - 1 if first else dispatched
