"""Discards of one client, recorded in the subscription's account and in the loss ledger, always both.

The end of a connection or of a subscription never loses records that the log keeps: their cause becomes
`DiscardCause.STORED`. Messages of a shared subscription return to its other consumers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker_core.delivery.account import NOTHING, DiscardCause, MessageVolume
from broker_core.delivery.loss_ledger import DiscardTally
from broker_core.delivery.ports import BacklogOwner, DeliveryTarget, InstanceResources
from broker_core.delivery.window import AckResult


class UndeliveredSummary(NamedTuple):
    """Messages that an ended subscription did not deliver.

    `recoverable`: the log has them. `unrecoverable`: no journal has them. They are losses, unless the client
    unsubscribed. `first` is the sequence to resume with; 0 when the peer has acknowledged everything that the
    log keeps.
    """

    recoverable: MessageVolume
    unrecoverable: MessageVolume
    first: int

    def plus(self, other: UndeliveredSummary) -> UndeliveredSummary:
        """Return the sum of both.

        `first` is the earlier one, because a client that resumes both begins there.
        """
        first = min((one for one in (self.first, other.first) if one), default=0)
        return UndeliveredSummary(
            self.recoverable.plus(other.recoverable), self.unrecoverable.plus(other.unrecoverable), first
        )


NOTHING_UNDELIVERED: Final = UndeliveredSummary(NOTHING, NOTHING, 0)
"""Summary of a subscription without undelivered messages."""


class DiscardRecorder:
    """Writes the discards of one client into accounts and into the loss ledger."""

    def __init__(self, owner: BacklogOwner, facilities: InstanceResources) -> None:
        self._owner = owner
        self._clock, self._ledger = facilities.clock, facilities.ledger

    def discard_waiting(
        self, recipient: DeliveryTarget, tally: DiscardTally, cause: DiscardCause, rule: str
    ) -> None:
        """Record waiting messages of a subscription as discarded."""
        for part, journaled in zip(tally.split_journaled(), (False, True), strict=True):
            if part.messages:
                recipient.account.discard_waiting(cause, MessageVolume(part.messages, part.nbytes), journaled)
                self._record_loss(recipient, part, cause, rule)

    def discard_rejected(
        self, recipient: DeliveryTarget, done: AckResult, cause: DiscardCause, first: int, last: int
    ) -> None:
        """Record messages that the application received and rejected as discarded.

        `first` to `last`: their log sequences.
        """
        for volume, journaled in ((done.journaled, True), (done.unjournaled, False)):
            if volume.messages:
                recipient.account.discard_in_flight(cause, volume, journaled)
                tally = DiscardTally()
                tally.add(volume.messages, volume.nbytes, *((first, last) if journaled else (0, 0)))
                self._record_loss(recipient, tally, cause, "")

    def discard_outstanding(
        self, recipient: DeliveryTarget, waiting: int, cause: DiscardCause, rule: str
    ) -> UndeliveredSummary:
        """Record every waiting or unacknowledged message of an ending subscription as discarded.

        `waiting` is the sequence of the first such journaled record; 0: there is none. `cause` is the reason
        of the end; it is the cause of unjournaled messages only.
        """
        account, first = recipient.account, recipient.first_needed(waiting)
        if account.is_empty:  # most of a client's thousand subscriptions are empty
            return UndeliveredSummary(NOTHING, NOTHING, 0 if recipient.is_shared else first)
        recoverable, unrecoverable = (
            side.waiting.plus(side.in_flight) for side in (account.journaled, account.unjournaled)
        )
        for side, amount, journaled in (
            (account.unjournaled, unrecoverable, False),
            (account.journaled, recoverable, True),
        ):
            if not amount.messages:
                continue
            if recipient.is_shared:
                named = DiscardCause.RETURNED
            else:
                named = DiscardCause.STORED if journaled else cause
            account.discard_waiting(named, side.waiting, journaled)
            account.discard_in_flight(named, side.in_flight, journaled)
            newest = max(account.last_matched, account.newest_shared, first)
            sequences = (first, newest) if journaled else (0, 0)
            tally = DiscardTally()
            tally.add(amount.messages, amount.nbytes, *sequences)
            self._record_loss(recipient, tally, named, rule)
        account.drop_log_only()
        return UndeliveredSummary(recoverable, unrecoverable, 0 if recipient.is_shared else first)

    def _record_loss(
        self, recipient: DeliveryTarget, tally: DiscardTally, cause: DiscardCause, rule: str
    ) -> None:
        """Record a discard in the loss ledger."""
        now, name = self._clock.now_ns(), self._owner.name
        self._ledger.record_loss(now, name, recipient.id, recipient.topic, cause, rule, tally)
