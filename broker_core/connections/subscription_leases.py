"""Leases on subscriptions.

A subscription ends if its client doesn't renew the lease; others continue (seed 001).
"""

from __future__ import annotations

from typing import Final

from broker_core.connections.connection_view import ConnectionView
from broker_core.delivery.account import DiscardCause
from broker_core.errors import ClientError
from broker_core.protocols import replies
from broker_core.replay.client_subscription import ClientSubscription

LEASE_RULE: Final = "lease"
"""Name under which an expired lease ends a subscription."""


class SubscriptionLeases:
    """Subscriptions with a lease, each with its client and its expiry (monotonic ms)."""

    def __init__(self) -> None:
        self._leases: dict[ClientSubscription, tuple[ConnectionView, int]] = {}

    def begin(
        self, connection: ConnectionView, target: ClientSubscription, lease_ms: int, now_ms: int
    ) -> None:
        target.lease_ms = lease_ms
        self._leases[target] = (connection, now_ms + lease_ms)

    def renew(self, connection: ConnectionView, id: str, now_ms: int) -> None:
        """Extend a lease by its length and reply.

        Raises:
            ClientError: unknown_subscription, when it was cancelled or has no lease.
        """
        target = connection.subscriptions.get(id)
        if target is None or target not in self._leases:
            raise ClientError(
                "unknown_subscription",
                f"There is no subscription {id!r} with a lease.",
                "It was cancelled: subscribe again.",
            )
        self._leases[target] = (connection, now_ms + target.lease_ms)
        connection.reply(replies.Ack(ack="processed", of="renew", id=id))

    def end(self, target: ClientSubscription) -> None:
        self._leases.pop(target, None)

    def expire(self, now_ms: int) -> None:
        """Cancel the subscriptions whose lease has expired. Called once a second."""
        for target, (connection, ends) in list(self._leases.items()):
            if ends >= now_ms:
                continue
            ending = connection.end(target, DiscardCause.CANCELLED, LEASE_RULE)
            connection.reply(
                replies.SubscriptionCancelled(
                    id=target.id,
                    code="lease_expired",
                    message=f"The lease of {target.lease_ms} ms wasn't renewed.",
                    kept=ending.recoverable.messages,
                    lost=ending.unrecoverable.messages,
                    bookmark=connection.resume_bookmark(ending),
                )
            )
