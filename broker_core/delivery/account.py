"""One subscription's account: what became of every message that was for it. Everything that is said of it reads this.

    matched = acknowledged by the peer + in flight (handed over, not acknowledged) + waiting + gone (by cause)

holds at every moment, in messages and in bytes of bodies, for what the log keeps and for what it doesn't alike. Only
`matched`, what was handed over, what was acknowledged and what is gone are counted; the rest follows from them, so that
no two figures can disagree. What waits lies in memory, in the spool, or in the log only: given back to the log to be read
again, it goes on waiting, and reading it again doesn't match it a second time (`Reread`).

"Acknowledged by the peer" is the application's word where a subscription has a window, otherwise that of the peer's kernel
(`peer_progress`). The unit is the batch: nothing here is done per message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from broker_core.batch import Batch, Rows


class DiscardCause(StrEnum):
    """Why messages will not be delivered."""

    DISCARDED = "discarded"
    """A policy discarded the oldest."""
    CONFLATED = "conflated"
    """A later message of the same key took its place."""
    CONFLATED_AS_ASKED = "conflated_as_asked"
    """The same, because the subscriber asked for conflation: nothing is lost by it."""
    EXPIRED = "expired"
    """It waited longer than a policy allows."""
    DISCONNECTED = "disconnected"
    """The connection ended, and no bookmark brings it back."""
    KEPT = "kept_in_log"
    """The connection or the subscription ended: a bookmark brings it back, as long as the log holds it."""
    UNSUBSCRIBED = "unsubscribed"
    """The subscription was ended by its client."""
    CANCELLED = "cancelled"
    """A policy, or the end of its lease, ended the subscription."""
    REFUSED = "refused"
    """Its subscriber said that it won't have it."""
    RETURNED = "returned"
    """Its subscriber shares a subscription and gave it back, or left with it: it goes to another, or comes again."""
    REMOVED = "removed"
    """It was to be read from the log, and has been removed there or is damaged."""


_NOT_LOST: Final = (DiscardCause.CONFLATED_AS_ASKED, DiscardCause.RETURNED)


class MessageVolume(NamedTuple):
    """Messages, and the bytes of their bodies."""

    messages: int = 0
    nbytes: int = 0

    def plus(self, other: MessageVolume) -> MessageVolume:
        """Both together."""
        return MessageVolume(self.messages + other.messages, self.nbytes + other.nbytes)

    def minus(self, other: MessageVolume) -> MessageVolume:
        """The difference."""
        return MessageVolume(self.messages - other.messages, self.nbytes - other.nbytes)


NOTHING = MessageVolume()


def batch_volume(batch: Batch) -> MessageVolume:
    """All of a batch."""
    return MessageVolume(batch.count, batch.header.bodies_length)


@dataclass(slots=True)
class AccountTotals:
    """One half of an account: of what the log keeps, or of what it doesn't. Plain sums that only grow, but for `handed`,
    which shrinks by what didn't leave after all."""

    matched: int = 0
    matched_bytes: int = 0
    handed: int = 0
    handed_bytes: int = 0
    acknowledged: int = 0
    acknowledged_bytes: int = 0
    lost_waiting: MessageVolume = NOTHING
    """Gone before it was handed over."""
    lost_in_flight: MessageVolume = NOTHING
    """Gone after it was handed over: the peer hasn't acknowledged it."""

    @property
    def waiting(self) -> MessageVolume:
        """Not handed over yet."""
        lost = self.lost_waiting
        return MessageVolume(
            self.matched - self.handed - lost.messages, self.matched_bytes - self.handed_bytes - lost.nbytes
        )

    @property
    def in_flight(self) -> MessageVolume:
        """Handed over and not acknowledged."""
        lost = self.lost_in_flight
        return MessageVolume(
            self.handed - self.acknowledged - lost.messages,
            self.handed_bytes - self.acknowledged_bytes - lost.nbytes,
        )


@dataclass(slots=True)
class OutstandingTotals:
    """What several subscriptions are owed together, and isn't in the log only; their accounts keep it."""

    messages: int = 0
    nbytes: int = 0

    def add(self, what: MessageVolume) -> None:
        """So much more."""
        self.messages += what.messages
        self.nbytes += what.nbytes

    def remove(self, what: MessageVolume) -> None:
        """So much less."""
        self.messages -= what.messages
        self.nbytes -= what.nbytes


@dataclass(slots=True)
class DeliveryAccount:
    """What was for one subscription. Those who deliver write it; everybody reads it."""

    journaled: AccountTotals = field(default_factory=AccountTotals)
    unjournaled: AccountTotals = field(default_factory=AccountTotals)
    gone: dict[DiscardCause, MessageVolume] = field(default_factory=dict)
    matched_upto: int = 0
    """Sequence of the last journaled record that was counted as matched: what is read again up to it isn't new."""
    in_log: MessageVolume = NOTHING
    """The part of what waits that is in the log only: it was given back, or came while the subscription was behind."""
    together: OutstandingTotals | None = field(default=None, compare=False)
    """What it is owed is part of that."""
    behind: OutstandingTotals | None = field(default=None, compare=False)
    """And what of it is in the log only of that."""

    def side(self, journaled: bool) -> AccountTotals:
        """The half that such messages belong to."""
        return self.journaled if journaled else self.unjournaled

    # What happens.

    def match(self, batch: Batch) -> None:
        """A batch is for the subscription; of journaled ones only what hasn't been counted before is new."""
        header = batch.header
        messages, nbytes, first = header.count, header.bodies_length, header.first_sequence
        if (together := self.together) is not None:  # what was counted before was in the log only
            together.messages += messages
            together.nbytes += nbytes
        if not first:
            side = self.unjournaled
        else:
            side = self.journaled
            if first > self.matched_upto:  # almost always
                self.matched_upto = batch.last_sequence
            else:
                fresh = slice_after(batch, self.matched_upto)
                self._leaves_log(MessageVolume(messages, nbytes).minus(fresh))
                messages, nbytes = fresh
                self.matched_upto = max(self.matched_upto, batch.last_sequence)
        side.matched += messages
        side.matched_bytes += nbytes

    def match_rows(self, batch: Batch, rows: Rows | None) -> MessageVolume:
        """Some rows of a batch (None: all) are for the subscription, and held back to be conflated. How much that is."""
        what = (
            batch_volume(batch)
            if rows is None
            else MessageVolume(len(rows), int(batch.rows["body"][rows].sum(dtype="u8")))
        )
        side = self.side(batch.header.first_sequence > 0)
        side.matched += what.messages
        side.matched_bytes += what.nbytes
        if self.together is not None:
            self.together.add(what)
        self.matched_upto = max(self.matched_upto, batch.last_sequence)
        return what

    def match_shared(self, batch: Batch) -> None:
        """A batch of the log is for the subscription, whatever was before: it shares what it gets with others, so that what has
        a lower sequence may come later, and what it gave back once more."""
        header = batch.header
        self.journaled.matched += header.count
        self.journaled.matched_bytes += header.bodies_length
        if self.together is not None:
            self.together.add(batch_volume(batch))

    def match_in_log(self, batch: Batch) -> None:
        """The same for what isn't queued: the subscription is behind, and will read it from the log."""
        fresh = slice_after(batch, self.matched_upto)
        self.journaled.matched += fresh.messages
        self.journaled.matched_bytes += fresh.nbytes
        self.matched_upto = max(self.matched_upto, batch.last_sequence)
        self._goes_to_log(fresh)

    def return_to_log(self, batch: Batch) -> None:
        """A queued batch of the log isn't queued any more: it will be read again."""
        self._goes_to_log(batch_volume(batch))
        if self.together is not None:
            self.together.remove(batch_volume(batch))

    def drop_log_only(self) -> MessageVolume:
        """Nothing of what waits is in the log only any more: it doesn't have it, or isn't asked. How much that was."""
        what = self.in_log
        self._leaves_log(what)
        if self.together is not None:
            self.together.add(what)
        return what

    def _goes_to_log(self, what: MessageVolume) -> None:
        self.in_log = self.in_log.plus(what)
        if self.behind is not None:
            self.behind.add(what)

    def _leaves_log(self, what: MessageVolume) -> None:
        self.in_log = self.in_log.minus(what)
        if self.behind is not None:
            self.behind.remove(what)

    def hand_over(self, batch: Batch) -> None:
        """A batch was given to the transport."""
        header = batch.header
        side = self.journaled if header.first_sequence else self.unjournaled
        side.handed += header.count
        side.handed_bytes += header.bodies_length

    def acknowledge(self, messages: int, nbytes: int, journaled: bool) -> None:
        """The peer has so much more."""
        side = self.journaled if journaled else self.unjournaled
        side.acknowledged += messages
        side.acknowledged_bytes += nbytes
        if (together := self.together) is not None:
            together.messages -= messages
            together.nbytes -= nbytes

    def lose_waiting(self, cause: DiscardCause, what: MessageVolume, journaled: bool) -> None:
        """What waited will not be delivered."""
        if what.messages:
            side = self.side(journaled)
            side.lost_waiting = side.lost_waiting.plus(what)
            self._lose(cause, what)

    def lose_in_flight(self, cause: DiscardCause, what: MessageVolume, journaled: bool) -> None:
        """What was handed over was not acknowledged, and never will be."""
        if what.messages:
            side = self.side(journaled)
            side.lost_in_flight = side.lost_in_flight.plus(what)
            self._lose(cause, what)

    def _lose(self, cause: DiscardCause, what: MessageVolume) -> None:
        self.gone[cause] = self.gone.get(cause, NOTHING).plus(what)
        if self.together is not None:
            self.together.remove(what)

    # What is said of it.

    @property
    def matched(self) -> MessageVolume:
        """All that was for the subscription."""
        kept, other = self.journaled, self.unjournaled
        return MessageVolume(kept.matched + other.matched, kept.matched_bytes + other.matched_bytes)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was for it yet: then every other figure is nothing too."""
        return not (self.journaled.matched or self.unjournaled.matched)

    @property
    def delivered(self) -> MessageVolume:
        """Handed over, whether or not the peer has acknowledged it."""
        kept, other = self.journaled, self.unjournaled
        return MessageVolume(kept.handed + other.handed, kept.handed_bytes + other.handed_bytes)

    @property
    def acknowledged(self) -> MessageVolume:
        """What the peer has."""
        kept, other = self.journaled, self.unjournaled
        return MessageVolume(
            kept.acknowledged + other.acknowledged, kept.acknowledged_bytes + other.acknowledged_bytes
        )

    @property
    def in_flight(self) -> MessageVolume:
        """Handed over and not acknowledged."""
        return self.journaled.in_flight.plus(self.unjournaled.in_flight)

    @property
    def waiting(self) -> MessageVolume:
        """Not handed over yet: in memory, in the spool, or in the log only."""
        return self.journaled.waiting.plus(self.unjournaled.waiting)

    @property
    def owed(self) -> MessageVolume:
        """Waiting, or in flight: what rules call a backlog."""
        return self.waiting.plus(self.in_flight)

    @property
    def lost_volume(self) -> MessageVolume:
        """Gone, and neither because the subscriber asked for it nor because another gets it."""
        return sum_volumes(what for cause, what in self.gone.items() if cause not in _NOT_LOST)

    def merge(self, other: DeliveryAccount) -> None:
        """All of another account: of a client whose subscriptions come and go."""
        for mine, its in ((self.journaled, other.journaled), (self.unjournaled, other.unjournaled)):
            if not its.matched:
                continue
            mine.matched += its.matched
            mine.matched_bytes += its.matched_bytes
            mine.handed += its.handed
            mine.handed_bytes += its.handed_bytes
            mine.acknowledged += its.acknowledged
            mine.acknowledged_bytes += its.acknowledged_bytes
            mine.lost_waiting = mine.lost_waiting.plus(its.lost_waiting)
            mine.lost_in_flight = mine.lost_in_flight.plus(its.lost_in_flight)
        self.in_log = self.in_log.plus(other.in_log)
        for cause, what in other.gone.items():
            self.gone[cause] = self.gone.get(cause, NOTHING).plus(what)


def slice_after(batch: Batch, upto: int) -> MessageVolume:
    """What of a journaled batch has a greater sequence."""
    if batch.last_sequence <= upto:
        return NOTHING
    first = int(batch.sequences().searchsorted(upto, side="right"))
    return MessageVolume(batch.count - first, int(batch.rows["body"][first:].sum(dtype="u8")))


def sum_volumes(amounts: Iterable[MessageVolume]) -> MessageVolume:
    """All of them together."""
    messages = nbytes = 0
    for amount in amounts:
        messages += amount.messages
        nbytes += amount.nbytes
    return MessageVolume(messages, nbytes)


def sum_accounts(accounts: Iterable[DeliveryAccount]) -> DeliveryAccount:
    """One account of them all: a client's, from those of its subscriptions."""
    made = DeliveryAccount()
    for one in accounts:
        if not one.is_empty:  # of a client's thousand subscriptions that are most
            made.merge(one)
    return made


def total_delivered(accounts: Iterable[DeliveryAccount]) -> MessageVolume:
    """What was handed over of all of them: asked for every second, of everybody."""
    messages = nbytes = 0
    for one in accounts:
        kept, other = one.journaled, one.unjournaled
        messages += kept.handed + other.handed
        nbytes += kept.handed_bytes + other.handed_bytes
    return MessageVolume(messages, nbytes)


def account_parts(account: DeliveryAccount) -> Iterator[tuple[str, MessageVolume]]:
    """The named parts of `matched`, for whoever shows or checks them."""
    yield "acknowledged", account.acknowledged
    yield "in_flight", account.in_flight
    yield "waiting", account.waiting
    for cause, what in account.gone.items():
        yield cause.value, what
