"""Serves bookmark subscriptions from the journal: to their end point, or until they are handed over to live delivery.

    where to read next     Span, decided in subscriptions/span.py, and the subscriptions' next_sequence
    what to select         replay_reader.read_chunk, in the reader thread (read_ahead); conflating holds back what it must
    when to deliver        the pace, then the client's socket: Backlog.room

One replay serves one subscription, or several of one client that were resumed together (`steering`): then it reads
once, and delivers in the journal's order across them. Each subscription has a position of its own, so that one can
leave at any moment, between two records, and go on from there later.

The law: replay(b) then live equals everything after b, once, in order. The hand-over is one turn of the loop without an
await: the position has passed everything dispatched, and the subscription is live before the next group is.

A replay goes only as fast as its client's socket: it queues a chunk when everything before has been taken, so it can't
make its client slow. What a client that has stopped reading wasn't sent is given back and read again later, so that a
thousand waiting replays hold next to nothing. All replays read through one thread, a chunk each in turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from broker_core.delivery import OutboxEntry
from broker_core.errors import JournalError
from broker_core.journal.held import Pin
from broker_core.runtime import clock
from broker_core.runtime.pacing import Pace
from broker_core.runtime.read_ahead import ReadAhead
from broker_core.runtime.replay_reader import Chunk, Piece
from broker_core.runtime.replay_telling import DAMAGED, REMOVED, say_completed, say_gap
from broker_core.subscriptions.pace import Rate
from broker_core.subscriptions.span import NEVER, Span

if TYPE_CHECKING:
    from broker_core.runtime.client_subscription import ClientSubscription
    from broker_core.runtime.host import Host

STALLED_AFTER_S = 0.05
"""A client that takes nothing for so long has stopped reading, as far as its replays are concerned."""
LONGEST_SLEEP_S = 60.0
"""How long a wait for a moment goes on without a look at the clock, which may be set meanwhile."""


class Replay:
    """The way through the log of subscriptions that go together. `run` is its task.

    A replay with a pace also paces what is new, and a managed one keeps its place: they never become live.
    """

    def __init__(
        self, host: Host, targets: Sequence[ClientSubscription], span: Span, pace: Pace | None = None
    ) -> None:
        self._host = host
        self.targets = list(targets)
        self._connection = targets[0].connection
        self._span = span
        self.pace = pace
        self._ahead = ReadAhead(host)
        self._waiting: deque[Piece] = deque()
        """Read, and held back by the pace."""
        self.task: asyncio.Task[None] | None = None
        self._pin: Pin | None = None

    @property
    def _next_sequence(self) -> int:
        """The first record that any of them hasn't been given."""
        return min(target.next_sequence for target in self.targets)

    @property
    def _streams(self) -> list[int]:
        """Where acknowledgements are awaited."""
        return [target.subscription.stream for target in self.targets]

    @property
    def _position(self) -> int:
        """The first record that may have to be read again."""
        return min(target.position for target in self.targets)

    def leave(self, target: ClientSubscription) -> None:
        """One of the subscriptions goes. What was read for it is read again when it goes on, or kept if conflated."""
        self.targets.remove(target)
        self._ahead.stop()
        mine = [piece for piece in self._waiting if piece.subscription is target.subscription]
        if target.conflating is not None:
            target.conflating.keep(mine)
        if mine:
            # In place: the pace may hold on to it.
            others = [piece for piece in self._waiting if piece.subscription is not target.subscription]
            self._waiting.clear()
            self._waiting.extend(others)
        target.replay = None
        if not self.targets and self.task is not None:
            self.task.cancel()

    def set_rate(self, rate: Rate | None) -> None:
        """Another rate, or none, from the next record on."""
        if self.pace is not None:
            self.pace.change(rate)
        elif rate is not None:
            self.pace = Pace(rate)

    async def run(self) -> None:
        """Deliver the span, then end or make the subscription live."""
        try:
            self._host.turns.replays += 1
            await self._seek()
            while not self._connection.closed and await self._step():
                pass
        except JournalError as error:
            # The client must not take silence for "nothing there": it is told, and can subscribe again.
            self._connection.fail(error)
        finally:
            self._host.turns.replays -= 1
            self._ahead.stop()
            if self._pin is not None:
                self._pin.release()

    # Where to read next.

    async def _seek(self) -> None:
        """Find the first record of a span that begins with a moment; wait for the moment when it is to come."""
        host, at = self._host, self._span.not_before
        if at > host.now_ns() and not self._span.ends:
            say_completed(self.targets)
        await self._until(at)
        self._pin = host.pin(self._position, f"replay of {self._connection.name}")
        for target in self.targets:
            target.unpin()
        if at:
            found = await host.in_reader_thread(host.journal.sequence_at, at)
            # Records that are written and not dispatched yet may come before the moment: each batch is asked.
            for target in self.targets:
                target.next_sequence = max(min(found, host.dispatched_sequence + 1), self._span.first)
        for target in self.targets:
            if target.managed is not None:
                target.managed.began_at = target.managed.began_at or target.next_sequence

    async def _until(self, moment: int) -> None:
        while True:
            left = moment - self._host.now_ns()
            if left <= 0:
                return
            await asyncio.sleep(min(left / 1e9, LONGEST_SLEEP_S))

    async def _step(self) -> bool:
        """Do what is next; False when nothing is left to do."""
        host, span = self._host, self._span
        if span.over(self._next_sequence, host.newest_sequence, host.now_ns()):
            await self._end()
            return False
        caught_up = [one for one in self.targets if not one.completed and one.next_sequence > one.caught_up_at]
        if caught_up and not span.ends:
            await self._pass(self._conflated([], release=True))
            # Answers overtake what waits in the outbox; this one must come after the records it speaks of.
            await self._connection.backlog.room(self._streams)
            say_completed(caught_up)
        if self._next_sequence <= host.dispatched_sequence:
            await self._move()
        elif span.ends or span.not_before or self._follows:
            await self._pass(self._conflated([]))
            await self._news()
        elif due := self._conflated([]):
            await self._pass(due)
        else:
            for target in self.targets:
                host.subscribing.make_live(target)
            return False
        return True

    @property
    def _follows(self) -> bool:
        """Whether what is new comes this way too."""
        return (self.pace is not None and self.pace.rate is not None) or any(one.managed for one in self.targets)

    async def _news(self) -> None:
        """Wait until more is dispatched, or the end's moment has passed."""
        held = [target.conflating.ends_at for target in self.targets if target.conflating is not None]
        moment = min((at for at in (self._span.not_after, *held) if at), default=NEVER)
        left = min(LONGEST_SLEEP_S, max(moment - self._host.now_ns(), 0) / 1e9 + 0.001)
        with suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._host.subscribing.news()

    # When to deliver.

    async def _move(self) -> None:
        """Deliver the next chunk."""
        backlog, turns = self._connection.backlog, self._host.turns
        if not backlog.has_room_for(self._streams) and not await self._room():
            return
        assert self._pin is not None
        self._pin.move(self._position)
        await turns.mine()
        began = clock.seconds()
        try:
            chunk = await self._ahead.chunk(self.targets, self._span)
        except JournalError as error:
            self._removed(error)
            return
        if chunk is None:
            return
        await self._deliver(chunk)
        if self.pace is None:
            turns.took(clock.seconds() - began)
        if backlog.has_room_for(self._streams) and self.targets:
            self._ahead.grow()

    async def _room(self) -> bool:
        """Wait until the socket has taken everything. False when that took long: what was read ahead is given back."""
        backlog = self._connection.backlog
        try:
            async with asyncio.timeout(STALLED_AFTER_S):
                await backlog.room(self._streams)
            return True
        except TimeoutError:
            self._ahead.stalled()
            self._give_back()
            await backlog.room(self._streams)
            return False

    def _give_back(self) -> None:
        """What waits in the outbox is in the log as well: read it again when the client reads."""
        for target in [target for target in self.targets if target.conflating is None]:
            taken = self._connection.backlog.take_back(target.subscription.stream)
            if taken:
                target.next_sequence = taken[0].batch.first_sequence
                target.delivered_messages -= sum(entry.count for entry in taken)
                if target.trail is not None:
                    target.trail.taken_back(sum(entry.nbytes for entry in taken))

    async def _deliver(self, chunk: Chunk) -> None:
        if chunk.first > self._next_sequence:
            say_gap(self.targets, self._next_sequence, chunk.first - 1, DAMAGED)
        conflated = self._conflated(chunk.pieces)
        if chunk.begun:
            self._span = self._span._replace(not_before=0)
        if chunk.over:
            self._span = self._span._replace(last=chunk.following - 1)
        for target in self.targets:
            target.begun, target.span = target.begun or chunk.begun, self._span
            if target.conflating is not None:
                target.next_sequence = max(target.next_sequence, chunk.following)
        if self.pace is None and self.targets:
            self._ahead.go_on(self.targets, self._span, chunk.following)
        await self._pass(conflated)
        for target in self.targets:
            target.next_sequence = max(target.next_sequence, chunk.following)

    def _conflated(self, pieces: Sequence[Piece], release: bool = False) -> Sequence[Piece]:
        """What a conflated subscription, which has its replay alone, gets now; all others what was read."""
        conflating = self.targets[0].conflating
        if conflating is None:
            return pieces
        return conflating.replayed(pieces, release or self._next_sequence > self._host.dispatched_sequence, release)

    async def _pass(self, pieces: Iterable[Piece]) -> None:
        """Queue pieces as the pace allows. A subscription may leave meanwhile, and takes with it what waits for it."""
        self._waiting.extend(pieces)
        while self.pace is not None and self._waiting and self.targets:
            self._queue(await self.pace.admit(self._waiting))
            await self._connection.backlog.room(self._streams)
        self._queue(self._waiting)
        self._waiting.clear()

    def _queue(self, pieces: Iterable[Piece]) -> None:
        connection, now = self._connection, self._host.now_ns()
        if connection.closed:
            raise asyncio.CancelledError
        targets = {target.subscription: target for target in self.targets}
        for subscription, source, length, rows, batch, recorded_at, _ in pieces:
            target = targets.get(subscription)
            if target is None:
                continue
            target.delivered_messages += batch.count
            target.recorded_at = recorded_at
            connection.backlog.offer(
                OutboxEntry(subscription.stream, batch, rows, source, length, batch.count, batch.nbytes, now)
            )
            if target.trail is not None:
                target.trail.sent(batch.first_sequence, batch.nbytes)
            if target.conflating is None:
                target.next_sequence = batch.last_sequence + 1
        for target in self.targets:
            if target.conflating is not None:
                target.held_from = target.conflating.first_of(self._waiting)
        connection.backlog.flush()

    # Gaps and the end.

    def _removed(self, error: JournalError) -> None:
        """Records were removed while the replay waited: the client is told which, and the replay goes on behind."""
        oldest = self._host.journal.first_sequence
        if error.code != "bookmark_gone" or oldest <= self._next_sequence:
            raise error
        say_gap(self.targets, self._next_sequence, oldest - 1, REMOVED)

    async def _end(self) -> None:
        """The end point is reached: say so when everything before it was sent, and end the subscriptions."""
        await self._pass(self._conflated([], release=True))
        await self._connection.backlog.room(self._streams)
        say_completed(self.targets, ended=True)
        for target in self.targets:
            self._host.subscribing.ended(target)
