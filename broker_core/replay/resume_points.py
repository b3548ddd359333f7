"""From where bookmark subscriptions may resume: a recent point even for a filter that rarely matches.

A subscription's resume point stands before the first record that it still has to get: in the log, held back, in the
outbox, in the spool, or on its way without the peer's acknowledgement. So whatever comes before it and matches, the
peer has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from broker_core.replay.client_subscription import ClientSubscription, Peer


def resume_points(
    subscriptions: Iterable[ClientSubscription], durable: int
) -> Iterator[tuple[ClientSubscription, int]]:
    """(subscription, the last sequence it is done with) of those whose beginning was met."""
    firsts: dict[Peer, dict[int, int]] = {}
    for target in subscriptions:
        peer = target.peer
        if peer not in firsts:
            peer.backlog.look()
            firsts[peer] = peer.backlog.firsts()
        if target.cursor.begun:
            needed = target.first_needed(firsts[peer].get(target.stream, 0))
            yield target, (needed or target.cursor.following(durable)) - 1
