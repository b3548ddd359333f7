"""Delivery account of one subscription: counts of every matched message by outcome.

Every report reads these counts.

    matched = acknowledged by the peer + in flight (handed over, unacknowledged) + waiting + discarded

The equation holds at every moment, in messages and in bytes of bodies. It holds separately for journaled and
for unjournaled messages. Only `matched`, `handed`, `acknowledged` and the discarded messages are counted. The
other figures are derived, so that no two figures can disagree.

Waiting messages are in memory, in the spool, or in the log only. A message that is given back to the log
keeps waiting. Reading it again does not count it as matched a second time.

With an acknowledgement window, the application acknowledges; otherwise the peer's kernel does
(`peer_progress`). The unit is the batch: no code of this module runs once per message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from broker_core.batch import Batch, Rows


class DiscardCause(StrEnum):
    """Reason why a subscription will not deliver messages.

    Some causes are losses (`is_loss`): the subscriber did not ask for the discard, and neither the log nor
    another consumer has the message.
    """

    DISCARDED = "discarded"
    """A policy discarded the oldest messages."""
    CONFLATED = "conflated"
    """A policy's conflation replaced the message by a later one with the same key."""
    CONFLATED_ON_REQUEST = "conflated_as_asked"
    """The subscriber's own conflation replaced the message by a later one with the same key."""
    EXPIRED = "expired"
    """The message waited longer than a policy allows."""
    DISCONNECTED = "disconnected"
    """The connection ended, and no journal keeps the message: a bookmark can't bring it back."""
    STORED = "kept_in_log"
    """The connection or the subscription ended, and the log keeps the message.

    A bookmark brings it back until the log removes it.
    """
    UNSUBSCRIBED = "unsubscribed"
    """The client ended the subscription, and no journal keeps the message."""
    CANCELLED = "cancelled"
    """A policy ended the subscription or its lease expired, and no journal keeps the message."""
    REFUSED = "refused"
    """The subscriber rejected the message."""
    RETURNED = "returned"
    """A consumer of a shared subscription gave the message back, or disconnected.

    Another consumer gets it, or it comes again.
    """
    REMOVED = "removed"
    """The message was only in the log, and was removed there or is damaged."""

    @property
    def is_loss(self) -> bool:
        """Whether messages with this cause are lost to the subscriber. Every report of losses asks here."""
        return self in _LOSSES


_LOSSES: Final = frozenset(
    {
        DiscardCause.DISCARDED,
        DiscardCause.CONFLATED,
        DiscardCause.EXPIRED,
        DiscardCause.DISCONNECTED,
        DiscardCause.CANCELLED,
        DiscardCause.REMOVED,
    }
)


class MessageVolume(NamedTuple):
    """Number of messages, and the bytes of their bodies."""

    messages: int = 0
    nbytes: int = 0

    def plus(self, other: MessageVolume) -> MessageVolume:
        """Return the sum of both volumes."""
        return MessageVolume(self.messages + other.messages, self.nbytes + other.nbytes)

    def minus(self, other: MessageVolume) -> MessageVolume:
        """Return this volume minus `other`."""
        return MessageVolume(self.messages - other.messages, self.nbytes - other.nbytes)


NOTHING = MessageVolume()
"""Empty volume."""


def batch_volume(batch: Batch) -> MessageVolume:
    """Return the messages of a batch and the bytes of their bodies."""
    return MessageVolume(batch.count, batch.header.bodies_length)


@dataclass(slots=True)
class AccountTotals:
    """Half of an account: journaled or unjournaled messages.

    All fields only grow, except that `handed` shrinks when the transport gives deliveries back.
    """

    matched: int = 0
    matched_bytes: int = 0
    handed: int = 0
    handed_bytes: int = 0
    acknowledged: int = 0
    acknowledged_bytes: int = 0
    discarded_waiting: MessageVolume = NOTHING
    """Messages that were discarded before they were handed to the transport."""
    discarded_in_flight: MessageVolume = NOTHING
    """Messages that were handed to the transport and discarded before the peer acknowledged them."""

    @property
    def waiting(self) -> MessageVolume:
        """Messages that are not handed to the transport yet."""
        lost = self.discarded_waiting
        return MessageVolume(
            self.matched - self.handed - lost.messages, self.matched_bytes - self.handed_bytes - lost.nbytes
        )

    @property
    def in_flight(self) -> MessageVolume:
        """Messages that were handed to the transport and are not acknowledged."""
        lost = self.discarded_in_flight
        return MessageVolume(
            self.handed - self.acknowledged - lost.messages,
            self.handed_bytes - self.acknowledged_bytes - lost.nbytes,
        )


@dataclass(slots=True)
class OutstandingTotals:
    """Sum of unacknowledged messages over several subscriptions, kept up to date by their accounts."""

    messages: int = 0
    nbytes: int = 0

    def add(self, volume: MessageVolume) -> None:
        """Add a volume."""
        self.messages += volume.messages
        self.nbytes += volume.nbytes

    def remove(self, volume: MessageVolume) -> None:
        """Subtract a volume."""
        self.messages -= volume.messages
        self.nbytes -= volume.nbytes


@dataclass(slots=True)
class DeliveryAccount:
    """Delivery account of one subscription.

    Delivery code writes it; rules, the console and the API read it.
    """

    journaled: AccountTotals = field(default_factory=AccountTotals)
    unjournaled: AccountTotals = field(default_factory=AccountTotals)
    discarded: dict[DiscardCause, MessageVolume] = field(default_factory=dict)
    """Discarded messages by cause."""
    last_matched: int = 0
    """Sequence of the last journaled record that was counted as matched.

    Reading it or earlier records again adds nothing.
    """
    newest_shared: int = 0
    """Newest sequence that a consumer of a shared subscription was given."""
    in_log: MessageVolume = NOTHING
    """Waiting messages that are in the log only.

    They were given back to it, or matched while the subscription was behind.
    """
    first_in_log: int = 0
    """Sequence before or at the first of them."""
    client_outstanding: OutstandingTotals | None = field(default=None, compare=False)
    """Totals over several subscriptions, with this account's unacknowledged messages except `in_log`."""
    client_log_only: OutstandingTotals | None = field(default=None, compare=False)
    """Totals over several subscriptions, including this account's `in_log`."""

    def get_totals(self, journaled: bool) -> AccountTotals:
        """Return the half of the account for journaled or unjournaled messages."""
        return self.journaled if journaled else self.unjournaled

    # Changes.

    def match(self, batch: Batch) -> None:
        """Count a batch as matched.

        A journaled record that was counted before is moved out of `in_log` instead.
        """
        header = batch.header
        messages, nbytes, first = header.count, header.bodies_length, header.first_sequence
        if (
            together := self.client_outstanding
        ) is not None:  # records that were counted before are in the log only
            together.messages += messages
            together.nbytes += nbytes
        if not first:
            side = self.unjournaled
        else:
            side = self.journaled
            if first > self.last_matched:  # almost always
                self.last_matched = batch.last_sequence
            else:
                fresh = volume_after(batch, self.last_matched)
                self._remove_log_only(MessageVolume(messages, nbytes).minus(fresh))
                messages, nbytes = fresh
                self.last_matched = max(self.last_matched, batch.last_sequence)
        side.matched += messages
        side.matched_bytes += nbytes

    def match_rows(self, batch: Batch, rows: Rows | None) -> MessageVolume:
        """Count some rows of a batch (None: all) as matched and held back for conflation.

        Return their volume.
        """
        volume = (
            batch_volume(batch)
            if rows is None
            else MessageVolume(len(rows), int(batch.rows["body"][rows].sum(dtype="u8")))
        )
        side = self.get_totals(batch.header.first_sequence > 0)
        side.matched += volume.messages
        side.matched_bytes += volume.nbytes
        if self.client_outstanding is not None:
            self.client_outstanding.add(volume)
        self.last_matched = max(self.last_matched, batch.last_sequence)
        return volume

    def match_shared(self, batch: Batch) -> None:
        """Count a journaled batch as matched for a consumer of a shared subscription.

        Batches that were counted before count again.

        A consumer may get records out of order, and may get a record again that it gave back.
        """
        header = batch.header
        self.journaled.matched += header.count
        self.journaled.matched_bytes += header.bodies_length
        self.newest_shared = max(self.newest_shared, batch.last_sequence)
        if self.client_outstanding is not None:
            self.client_outstanding.add(batch_volume(batch))

    def match_in_log(self, batch: Batch) -> None:
        """Count a batch as matched that is in the log only, because the subscription is behind."""
        fresh = volume_after(batch, self.last_matched)
        self._lower_first_in_log(max(batch.first_sequence, self.last_matched + 1))
        self.journaled.matched += fresh.messages
        self.journaled.matched_bytes += fresh.nbytes
        self.last_matched = max(self.last_matched, batch.last_sequence)
        self._add_log_only(fresh)

    def return_to_log(self, batch: Batch) -> None:
        """Count a queued batch as in the log only: it was unqueued and will be read again."""
        self._lower_first_in_log(batch.first_sequence)
        self._add_log_only(batch_volume(batch))
        if self.client_outstanding is not None:
            self.client_outstanding.remove(batch_volume(batch))

    def drop_log_only(self) -> MessageVolume:
        """Stop counting any waiting messages as in the log only. Return their volume.

        The log no longer has them, or the subscription no longer reads it. The caller then discards them.
        """
        volume = self.in_log
        self._remove_log_only(volume)
        if self.client_outstanding is not None:
            self.client_outstanding.add(volume)
        return volume

    def _lower_first_in_log(self, first: int) -> None:
        """Record that messages from sequence `first` on are about to be counted as in the log only."""
        self.first_in_log = min(self.first_in_log, first) if self.in_log.messages else first

    def _add_log_only(self, volume: MessageVolume) -> None:
        """Count messages as in the log only."""
        self.in_log = self.in_log.plus(volume)
        if self.client_log_only is not None:
            self.client_log_only.add(volume)

    def _remove_log_only(self, volume: MessageVolume) -> None:
        """Stop counting messages as in the log only."""
        self.in_log = self.in_log.minus(volume)
        if self.client_log_only is not None:
            self.client_log_only.remove(volume)

    def hand_over(self, batch: Batch) -> None:
        """Count a batch as handed to the transport."""
        header = batch.header
        side = self.journaled if header.first_sequence else self.unjournaled
        side.handed += header.count
        side.handed_bytes += header.bodies_length

    def acknowledge(self, messages: int, nbytes: int, journaled: bool) -> None:
        """Count messages as acknowledged by the peer."""
        side = self.journaled if journaled else self.unjournaled
        side.acknowledged += messages
        side.acknowledged_bytes += nbytes
        if (together := self.client_outstanding) is not None:
            together.messages -= messages
            together.nbytes -= nbytes

    def discard_waiting(self, cause: DiscardCause, volume: MessageVolume, journaled: bool) -> None:
        """Count waiting messages as discarded."""
        if volume.messages:
            totals = self.get_totals(journaled)
            totals.discarded_waiting = totals.discarded_waiting.plus(volume)
            self._record_discard(cause, volume)

    def discard_in_flight(self, cause: DiscardCause, volume: MessageVolume, journaled: bool) -> None:
        """Count messages in flight as discarded: the peer did not acknowledge them and never will."""
        if volume.messages:
            side = self.get_totals(journaled)
            side.discarded_in_flight = side.discarded_in_flight.plus(volume)
            self._record_discard(cause, volume)

    def _record_discard(self, cause: DiscardCause, volume: MessageVolume) -> None:
        """Count messages as discarded."""
        self.discarded[cause] = self.discarded.get(cause, NOTHING).plus(volume)
        if self.client_outstanding is not None:
            self.client_outstanding.remove(volume)

    # Figures.

    @property
    def matched(self) -> MessageVolume:
        """Messages that matched the subscription."""
        journaled, unjournaled = self.journaled, self.unjournaled
        return MessageVolume(
            journaled.matched + unjournaled.matched, journaled.matched_bytes + unjournaled.matched_bytes
        )

    @property
    def is_empty(self) -> bool:
        """Whether no message has matched yet. Every other figure is 0 then."""
        return not (self.journaled.matched or self.unjournaled.matched)

    @property
    def delivered(self) -> MessageVolume:
        """Messages that were handed to the transport, acknowledged or not."""
        journaled, unjournaled = self.journaled, self.unjournaled
        return MessageVolume(
            journaled.handed + unjournaled.handed, journaled.handed_bytes + unjournaled.handed_bytes
        )

    @property
    def acknowledged(self) -> MessageVolume:
        """Messages that the peer has acknowledged."""
        journaled, unjournaled = self.journaled, self.unjournaled
        return MessageVolume(
            journaled.acknowledged + unjournaled.acknowledged,
            journaled.acknowledged_bytes + unjournaled.acknowledged_bytes,
        )

    @property
    def in_flight(self) -> MessageVolume:
        """Messages that were handed to the transport and are not acknowledged."""
        return self.journaled.in_flight.plus(self.unjournaled.in_flight)

    @property
    def waiting(self) -> MessageVolume:
        """Messages that are not handed to the transport yet: in memory, in the spool, or in the log only."""
        return self.journaled.waiting.plus(self.unjournaled.waiting)

    @property
    def outstanding(self) -> MessageVolume:
        """Messages that wait or are in flight. Rules call this the backlog."""
        return self.waiting.plus(self.in_flight)

    @property
    def discarded_volume(self) -> MessageVolume:
        """Messages that will not be delivered, for any cause."""
        return sum_volumes(self.discarded.values())

    @property
    def lost_volume(self) -> MessageVolume:
        """Discarded messages that are lost to the subscriber (`DiscardCause.is_loss`)."""
        return sum_volumes(volume for cause, volume in self.discarded.items() if cause.is_loss)

    def merge(self, other: DeliveryAccount) -> None:
        """Add all counts of another account to this one."""
        for side, added in ((self.journaled, other.journaled), (self.unjournaled, other.unjournaled)):
            if not added.matched:
                continue
            side.matched += added.matched
            side.matched_bytes += added.matched_bytes
            side.handed += added.handed
            side.handed_bytes += added.handed_bytes
            side.acknowledged += added.acknowledged
            side.acknowledged_bytes += added.acknowledged_bytes
            side.discarded_waiting = side.discarded_waiting.plus(added.discarded_waiting)
            side.discarded_in_flight = side.discarded_in_flight.plus(added.discarded_in_flight)
        self.in_log = self.in_log.plus(other.in_log)
        for cause, volume in other.discarded.items():
            self.discarded[cause] = self.discarded.get(cause, NOTHING).plus(volume)


def volume_after(batch: Batch, sequence: int) -> MessageVolume:
    """Return the volume of a journaled batch's records with a sequence greater than `sequence`."""
    if batch.last_sequence <= sequence:
        return NOTHING
    first = int(batch.sequences().searchsorted(sequence, side="right"))
    return MessageVolume(batch.count - first, int(batch.rows["body"][first:].sum(dtype="u8")))


def sum_volumes(amounts: Iterable[MessageVolume]) -> MessageVolume:
    """Return the sum of some volumes."""
    messages = nbytes = 0
    for amount in amounts:
        messages += amount.messages
        nbytes += amount.nbytes
    return MessageVolume(messages, nbytes)


def sum_accounts(accounts: Iterable[DeliveryAccount]) -> DeliveryAccount:
    """Return a new account with the sum of the given ones, such as a client's from its subscriptions."""
    made = DeliveryAccount()
    for one in accounts:
        if not one.is_empty:  # most of a client's thousand subscriptions are empty
            made.merge(one)
    return made


def total_delivered(accounts: Iterable[DeliveryAccount]) -> MessageVolume:
    """Return the volume handed over by all the given accounts.

    Called every second for every client, so it builds no account.
    """
    messages = nbytes = 0
    for one in accounts:
        journaled, unjournaled = one.journaled, one.unjournaled
        messages += journaled.handed + unjournaled.handed
        nbytes += journaled.handed_bytes + unjournaled.handed_bytes
    return MessageVolume(messages, nbytes)


def list_account_volumes(account: DeliveryAccount) -> Iterator[tuple[str, MessageVolume]]:
    """Yield the named parts of `matched`. Their sum equals `matched`."""
    yield "acknowledged", account.acknowledged
    yield "in_flight", account.in_flight
    yield "waiting", account.waiting
    for cause, volume in account.discarded.items():
        yield cause.value, volume
