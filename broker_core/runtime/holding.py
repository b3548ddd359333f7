"""Conflation of one subscription, carried out: what it holds back, when that is delivered, and what it takes in memory.

During a replay the intervals end on the recorded timeline, when a later record comes. When the subscription has caught
up they end by the clock. While the client is offlined nothing is held: its memory is what must become less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from broker_core.batch import Batch, Rows
from broker_core.delivery import OutboxEntry
from broker_core.runtime.replay_reader import Piece
from broker_core.subscriptions.conflation import Conflation, Conflator

if TYPE_CHECKING:
    from broker_core.runtime.client_subscription import ClientSubscription
    from broker_core.runtime.host import Host


class Conflating:
    """The held records of one subscription."""

    def __init__(self, host: Host, target: ClientSubscription, conflation: Conflation) -> None:
        self._host = host
        self._target = target
        self._conflator = Conflator(conflation, target.subscription.decoder_of)
        self._kept: list[Piece] = []
        """Conflated already, when the replay was paused."""
        self._counted = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ends_at(self) -> int:
        """When the interval of what is held ends, ns; 0 when nothing is held."""
        return self._conflator.ends_at

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
            ready += self._pieces(self._conflator.take(piece.batch, None), ends_at)
        if caught_up:
            ends_at = self.ends_at
            ready += self._pieces(self._conflator.release() if release else self._conflator.due(self._host.now_ns()), ends_at)
        self._count()
        return ready

    def keep(self, pieces: Sequence[Piece]) -> None:
        """The replay is paused: these were conflated and not delivered; they come first when it goes on."""
        self._kept += [piece.first(piece.batch.count - piece.start) for piece in pieces]
        self._count()
        self._disarm()

    def _pieces(self, batches: list[Batch], recorded_at: int) -> list[Piece]:
        return [Piece(self._target.subscription, None, 0, None, batch, recorded_at) for batch in batches]

    # Live.

    def live(self, batch: Batch, rows: Rows | None) -> None:
        """Take what matched of a batch, and queue what its coming ends. The caller flushes."""
        self._offer(self._conflator.take(batch, rows))
        if self._target.connection.backlog.spool is not None:
            self._offer(self._conflator.release())
        self.arm()

    def arm(self) -> None:
        """See to it that what is held is delivered when its interval ends."""
        self._count()
        if self._timer is None and self.ends_at:
            left = max(self.ends_at - self._host.now_ns(), 0) / 1e9
            self._timer = asyncio.get_running_loop().call_later(left + 0.001, self._ended)

    def _ended(self) -> None:
        self._timer = None
        connection = self._target.connection
        if connection.closed:
            return
        self._offer(self._conflator.due(self._host.now_ns()))
        self.arm()
        connection.backlog.flush()

    def _offer(self, batches: list[Batch]) -> None:
        target = self._target
        for batch in batches:
            target.delivered_messages += batch.count
            target.connection.backlog.offer(OutboxEntry(
                target.subscription.stream, batch, None, None, 0, batch.count, batch.nbytes, batch.accepted_at
            ))

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
        self._target.connection.backlog.conflated_bytes += nbytes - self._counted
        self._counted = nbytes
        if self._target.signals is not None:
            self._target.signals.conflation_bytes = nbytes
        self._target.held_from = self.first_of(self._kept)
