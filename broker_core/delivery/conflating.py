"""Conflation of one subscription, carried out: what it holds back, when that is delivered, and what it takes in memory.

During a replay the intervals end on the recorded timeline, when a later record comes. When the subscription has caught
up they end by the clock. While the client is offlined nothing is held: its memory is what must become less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from broker_core.batch import Batch, Rows
from broker_core.delivery.account import Cause
from broker_core.delivery.backlog import Backlog
from broker_core.delivery.conflation import Conflation, Conflator
from broker_core.delivery.entry import OutboxEntry
from broker_core.delivery.lifecycle import ClientState
from broker_core.delivery.piece import Piece
from broker_core.delivery.ports import Facilities, Recipient
from broker_core.delivery.shared import age_from
from broker_core.subscriptions.subscription import Subscription


class Conflating:
    """The held records of one subscription."""

    def __init__(
        self,
        facilities: Facilities,
        backlog: Backlog,
        recipient: Recipient,
        subscription: Subscription[object],
        conflation: Conflation,
    ) -> None:
        self._clock = facilities.clock
        self._backlog = backlog
        self._recipient = recipient
        self._subscription = subscription
        self._conflator = Conflator(conflation, subscription.decoder_of)
        self._kept: list[Piece] = []
        """Conflated already, when the replay was paused."""
        self.nbytes = 0
        """What it holds, in memory."""
        self.first_sequence = 0
        """The first record that is kept back and not delivered yet; 0 when there is none."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ends_at(self) -> int:
        """When the interval of what is held ends, ns; 0 when nothing is held."""
        return self._conflator.ends_at

    @property
    def forgotten(self) -> bool:
        """Whether something is held that no clock will release. Of a live subscription this must never be so."""
        return self._timer is None and self.ends_at > 0

    def first_of(self, waiting: Sequence[Piece]) -> int:
        """The first record that isn't delivered, of those waiting and those held; 0 when there is none."""
        return waiting[0].first_sequence if waiting else self._conflator.first_sequence

    # During a replay.

    def replayed(self, pieces: Iterable[Piece], caught_up: bool, release: bool) -> list[Piece]:
        """What may be delivered now that these were read.

        Once the replay has caught up, intervals that the clock has ended are; with `release` everything that is held.
        """
        ready, self._kept = self._kept, []
        for piece in pieces:
            ends_at = self.ends_at
            ready += self._pieces(self._take(piece.batch, None), ends_at)
        if caught_up:
            ends_at = self.ends_at
            ready += self._pieces(
                self._conflator.release() if release else self._conflator.due(self._clock.now_ns()), ends_at
            )
        self._count()
        return ready

    def keep(self, pieces: Sequence[Piece]) -> None:
        """The replay is paused: these were conflated and not delivered; they come first when it goes on."""
        self._kept += [piece.first(piece.batch.count - piece.start) for piece in pieces]
        self._count()
        self._disarm()

    def _pieces(self, batches: list[Batch], recorded_at: int) -> list[Piece]:
        return [Piece(self._subscription, None, 0, None, batch, recorded_at) for batch in batches]

    def _take(self, batch: Batch, rows: Rows | None) -> list[Batch]:
        """Hold what matched; into the account goes what came, and what it took the place of: no loss, it was asked for."""
        account = self._recipient.account
        account.match_rows(batch, rows)
        ended = self._conflator.take(batch, rows)
        account.lose_waiting(
            Cause.CONFLATED_AS_ASKED, self._conflator.replaced, batch.header.first_sequence > 0
        )
        return ended

    # Live.

    def live(self, batch: Batch, rows: Rows | None) -> None:
        """Take what matched of a batch, and queue what its coming ends."""
        self._offer(self._take(batch, rows))
        if self._backlog.spool is not None:
            self._offer(self._conflator.release())
        self.arm()

    def arm(self) -> None:
        """See to it that what is held is delivered when its interval ends."""
        self._count()
        if self._timer is None and self.ends_at:
            # Records come as new as the clock; where it is behind theirs, an interval still lasts no longer than it says.
            left = min(max(self.ends_at - self._clock.now_ns(), 0), self._conflator.interval_ns)
            self._timer = asyncio.get_running_loop().call_later(left / 1e9 + 0.001, self._ended, self.ends_at)

    def _ended(self, armed_for: int) -> None:
        self._timer = None
        if self._backlog.state is ClientState.CLOSED:
            return
        self._offer(self._conflator.due(max(self._clock.now_ns(), armed_for)))
        self.arm()

    def _offer(self, batches: list[Batch]) -> None:
        now = self._clock.now_ns()
        for batch in batches:
            since = age_from(batch.accepted_at, now)
            self._backlog.put(
                OutboxEntry(self._recipient.stream, batch, None, None, 0, batch.count, batch.nbytes, since)
            )

    def offlined(self) -> None:
        """The client is offlined: what is held goes to its spool with everything else."""
        self._offer(self._conflator.release())
        self.arm()

    def close(self) -> None:
        """The subscription has ended."""
        self._disarm()
        self._conflator.drop()
        self._kept.clear()
        self._count()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count(self) -> None:
        """Keep the client's memory true, and the record that it would have to start from again."""
        nbytes = self._conflator.nbytes + sum(piece.batch.nbytes for piece in self._kept)
        if nbytes != self.nbytes:
            self._backlog.hold_back(nbytes - self.nbytes)
            self.nbytes = nbytes
        self.first_sequence = self.first_of(self._kept)
