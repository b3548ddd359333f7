"""Leases on subscriptions: a client that doesn't renew one loses the subscription, and its other ones go on (seed 001)."""

from __future__ import annotations

from broker_core.connections.member import Member
from broker_core.errors import ClientError
from broker_core.protocols import replies
from broker_core.replay.client_subscription import ClientSubscription


class Leases:
    """The subscriptions that have one, each with the moment it ends (ms of the clock that never jumps)."""

    def __init__(self) -> None:
        self._ends: dict[ClientSubscription, int] = {}
        self._holders: dict[ClientSubscription, Member] = {}

    def begin(self, connection: Member, target: ClientSubscription, lease_ms: int, now_ms: int) -> None:
        """A subscription begins with a lease."""
        target.lease_ms = lease_ms
        self._ends[target] = now_ms + lease_ms
        self._holders[target] = connection

    def renew(self, connection: Member, id: str, now_ms: int) -> None:
        """Extend a lease by its length. ClientError unknown_subscription: it was cancelled, or has no lease."""
        target = connection.subscriptions.get(id)
        if target is None or target not in self._ends:
            raise ClientError(
                "unknown_subscription",
                f"There is no subscription {id!r} with a lease.",
                "It was cancelled: subscribe again.",
                c="renew",
                id=id,
            )
        self._ends[target] = now_ms + target.lease_ms
        connection.reply(replies.Ack(ack="processed", of="renew", id=id))

    def end(self, target: ClientSubscription) -> None:
        """The subscription is over."""
        self._ends.pop(target, None)
        self._holders.pop(target, None)

    def expire(self, now_ms: int) -> None:
        """Cancel those that weren't renewed. Once a second."""
        for target in [target for target, ends in self._ends.items() if ends < now_ms]:
            connection = self._holders[target]
            ending = connection.cancel(target, "lease")
            connection.reply(
                replies.Cancelled(
                    id=target.id,
                    code="lease_expired",
                    message=f"The lease of {target.lease_ms} ms wasn't renewed.",
                    kept=ending.kept.messages,
                    lost=ending.lost.messages,
                    bookmark=connection.resume_bookmark(ending),
                )
            )
