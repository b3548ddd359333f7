"""Serves bookmark subscriptions from the journal: to their end point, or until they are handed over to live delivery.

    where to read next     Span, decided in span.py, and the subscriptions' next_sequence
    what to select         chunks.read_chunk, in the reader thread (read_ahead); conflating holds back what it must
    when to deliver        the pace, then the client's socket: Backlog.room

One replay serves one subscription, or several of one client that were resumed together (`replay.control`): then it reads
once, and delivers in the journal's order across them. Each subscription has a position of its own, so that one can
leave at any moment, between two records, and go on from there later.

The hand-over to live delivery (its law: `cursor`) is one turn of the loop without an await: the position has passed
everything dispatched, and the subscription is live before the next group is.

A replay goes only as fast as its client takes: of its chunk it queues what socket, window and credit let through at once,
when everything before has been taken. So what it has read makes nobody slow, however small the limits are. When a client
stops reading, what it wasn't given is let go and read again later, so that a thousand waiting replays hold next to
nothing. All replays read through one thread, a chunk each in turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

import structlog

from broker_core.delivery.entries import BatchSlice, OutboxEntry
from broker_core.delivery.ports import InstanceResources
from broker_core.delivery.sink import PULL_BYTES
from broker_core.errors import JournalError
from broker_core.journal.open_segments import Pin
from broker_core.replay.client_subscription import DAMAGED, REMOVED, ClientSubscription
from broker_core.replay.cursor import DurableFrontier
from broker_core.replay.rate_limit import ReplayRate, ReplayRateLimiter
from broker_core.replay.read_ahead import ReadAhead, ReplayChunk
from broker_core.replay.span import NEVER, ReplaySpan

log = structlog.get_logger("sluice.replay")
STALLED_AFTER_S = 0.05
"""A client that takes nothing for so long has stopped reading, as far as its replays are concerned."""
LONGEST_SLEEP_S = 60.0
"""How long a wait for a moment goes on without a look at the clock, which may be set meanwhile."""


class LiveHandover(Protocol):
    """Where replays end: `engine.subscriptions`."""

    def make_live(self, target: ClientSubscription) -> None:
        """It has everything that was dispatched; from the next batch on it gets what comes."""

    def remove_from_live(self, target: ClientSubscription) -> None: ...
    def on_fallback(self, target: ClientSubscription) -> int:
        """It reads from the log from now on, and goes on being told what comes, when that is on disk. Up to which sequence
        it was given everything."""

    def on_replay_ended(self, target: ClientSubscription) -> None: ...


class Replay:
    """The way through the log of subscriptions that go together. `run` is its task.

    A replay with a pace also paces what is new, a managed one keeps its place, and what is to be fully durable in a group is behind
    what is durable here: they never become live.
    """

    def __init__(
        self,
        facilities: InstanceResources,
        frontier: DurableFrontier,
        live: LiveHandover,
        targets: Sequence[ClientSubscription],
        span: ReplaySpan,
        rate: ReplayRate | None,
    ) -> None:
        self._facilities = facilities
        self._clock, self._share = facilities.clock, facilities.share
        self._frontier = frontier
        self._live = live
        self.targets = list(targets)
        self._peer = targets[0].peer
        self._span = span
        self._pace = ReplayRateLimiter(rate, facilities.clock.monotonic_ns)
        self._ahead = ReadAhead(facilities, frontier)
        self._waiting: deque[BatchSlice] = deque()
        """Read, and not due yet, or not taken by the client."""
        self._asked_end_at = 0
        """When the end of the log was first asked for, ns of the clock that never jumps; 0 before."""
        self._end_sequence: int | None = None
        """The newest record of the log as it was told then."""
        self.task: asyncio.Task[None] | None = None
        self._pin: Pin | None = None

    @property
    def _next_sequence(self) -> int:
        """The first record that any of them hasn't been given."""
        return min(target.cursor.next_sequence for target in self.targets)

    @property
    def _streams(self) -> list[int]:
        """Where acknowledgements are awaited."""
        return [target.stream for target in self.targets]

    @property
    def _position(self) -> int:
        """The first record that may have to be read again."""
        return min(target.first_needed(0) for target in self.targets)

    def remove_subscription(self, target: ClientSubscription) -> None:
        """One of the subscriptions goes. What was read for it is read again when it goes on, or kept if conflated."""
        self.targets.remove(target)
        self._ahead.stop()
        mine = [piece for piece in self._waiting if piece.subscription is target.subscription]
        if target.conflating is not None:
            target.conflating.hold_batch(mine)
        elif mine:
            target.cursor.advance_to(mine[0].first_sequence)
        if mine:
            others = [piece for piece in self._waiting if piece.subscription is not target.subscription]
            self._waiting = deque(others)
        target.serving = None
        if not self.targets and self.task is not None:
            self.task.cancel()

    def set_rate(self, rate: ReplayRate | None) -> None:
        """Another rate, or none, from the next record on."""
        self._pace.set_rate(rate)

    async def run(self) -> None:
        """Deliver the span, then end or make the subscription live."""
        try:
            self._share.replays += 1
            await self._seek()
            while not self._peer.is_closed and await self._step():
                pass
        except JournalError as error:
            # The client must not take silence for "nothing there": it is told, and can subscribe again.
            self._peer.fail(error)
        except Exception:
            log.exception(
                "replay_failed", client=self._peer.name, subscriptions=[one.id for one in self.targets]
            )
            self._peer.close("internal_error", "What this client asked of the log couldn't be brought.")
        finally:
            self._share.replays -= 1
            self._ahead.stop()
            if self._pin is not None:
                self._pin.release()

    @property
    def pinned_from(self) -> int | None:
        """From where it holds the log; None before it has found its place."""
        return self._pin.sequence if self._pin is not None else None

    @property
    def is_due(self) -> bool:
        """Whether it should be moving: neither its client nor its pace holds it back, and there is something to read, to end,
        or to go live with. One whose task has ended should have been left by all."""
        if self.task is None or self.task.done():
            return True
        now, span, following = self._clock.now_ns(), self._span, self._next_sequence
        if (
            self._pace.rate is not None
            or span.not_before > now
            or not self._peer.backlog.can_send(self._streams)
        ):
            return False
        if following <= self._frontier.durable:
            return True
        if self._waits_for_end:
            return False
        if span.is_past_end(following, self._frontier.stamped, now):
            return True
        return not (span.is_bounded or span.not_before or self._follows)

    # Where the log ends.

    def _read_end(self) -> int | None:
        """Return the record up to which the log must be delivered before it may be called complete; None
        until that is confirmed."""
        end = self._frontier.end
        if end is None:
            return 0  # what was there when it was asked for is enough
        if self._end_sequence is None:
            self._asked_end_at = self._asked_end_at or self._clock.monotonic_ns()
            if end.was_read_since(self._asked_end_at):
                self._end_sequence = end.sequence
        return self._end_sequence

    @property
    def _waits_for_end(self) -> bool:
        return self._asked_end_at > 0 and self._end_sequence is None

    # Where to read next.

    async def _seek(self) -> None:
        """Find the first record of a span that begins with a moment; wait for the moment when it is to come."""
        journal, at = self._facilities.journal, self._span.not_before
        completed = self._span.is_bounded
        while (left := at - self._clock.now_ns()) > 0:
            knows_end = completed or self._read_end() is not None  # before the log is looked at
            if await self._is_in_the_log(at):
                break
            if knows_end and not completed:
                completed = True
                for target in self.targets:
                    target.send_completed()
            seconds = min(left / 1e9, LONGEST_SLEEP_S)
            await (asyncio.sleep(seconds) if completed else self._news_within(seconds))
        self._pin = journal.pin(self._position, f"replay of {self._peer.name}", self._peer.durable_owner(""))
        for target in self.targets:
            target.unpin()
        if at:
            found = await self._facilities.reader.run(journal.sequence_at, at)
            # Records that are written and not dispatched yet may come before the moment: each batch is asked.
            for target in self.targets:
                target.cursor.advance_to(max(min(found, self._frontier.durable + 1), self._span.first))
        for target in self.targets:
            if target.managed is not None:
                target.managed.began_at = target.managed.began_at or target.cursor.next_sequence

    async def _is_in_the_log(self, moment: int) -> bool:
        """Whether it has come by the records' time: this machine's clock may be behind those that stamped them."""
        found = await self._facilities.reader.run(self._facilities.journal.sequence_at, moment)
        return found <= self._frontier.durable

    async def _step(self) -> bool:
        """Do what is next; False when nothing is left to do."""
        durable, span = self._frontier.durable, self._span
        if span.is_past_end(self._next_sequence, self._frontier.stamped, self._clock.now_ns()):
            if self._next_sequence <= span.last and self._read_end() is None:
                await self._news_within(LONGEST_SLEEP_S)
                return True
            await self._end()
            return False
        if self._next_sequence <= durable and self._passed_by:
            self._ahead.stop()
            for target in self.targets:
                target.cursor.advance_to(durable + 1)
        caught_up = self._caught_up()
        # Records that were given before they were on disk will come once more when they are.
        given_early = any(one.account.matched_upto > durable for one in self.targets)
        if caught_up:
            await self._pass(self._conflated([], release=True))
            # Answers overtake what waits in the outbox; this one must come after the records it speaks of.
            await self._peer.backlog.wait_drained(self._streams)
            for target in caught_up:
                target.send_completed()
            durable = self._frontier.durable
        if self._next_sequence <= durable:
            await self._move()
        elif due := self._conflated([]):
            await self._pass(due)  # then look again: its rate may be lifted meanwhile
        elif span.is_bounded or span.not_before or self._follows or given_early or self._waits_for_end:
            await self._news()
        elif self._peer.backlog.offline is not None:
            # What comes meanwhile is in the log, and needn't go to the client's spool.
            await self._peer.backlog.wait_drained(self._streams)
        else:
            for target in self.targets:
                self._live.make_live(target)
            return False
        return True

    def _caught_up(self) -> list[ClientSubscription]:
        """Return those that have everything up to the confirmed end of the log, and weren't told so."""
        found = [
            one for one in self.targets if not one.completed and one.cursor.is_caught_up(one.caught_up_at)
        ]
        if not found or self._span.is_bounded or (end := self._read_end()) is None:
            return []
        for target in found:
            target.caught_up_at = max(target.caught_up_at, end)
        return [one for one in found if one.cursor.is_caught_up(one.caught_up_at)]

    @property
    def _passed_by(self) -> bool:
        """Whether what is left of the log has nothing for them, for certain: then it isn't read. A thousand idle queues would never
        come to the end of a log that is written meanwhile."""
        span, journal = self._span, self._facilities.journal
        if span.is_bounded or span.not_before or self._follows:
            return False
        return all(
            one.conflating is None
            and (topic := one.subscription.pattern.exact) is not None
            and not journal.may_contain_topic(topic, one.cursor.next_sequence)
            for one in self.targets
        )

    @property
    def _follows(self) -> bool:
        """Whether what is new comes this way too."""
        return self._pace.rate is not None or any(
            one.managed or one.durability == "fully_durable" for one in self.targets
        )

    async def _news(self) -> None:
        """Wait until more is dispatched, or the end's moment has passed."""
        held = [target.conflating.ends_at for target in self.targets if target.conflating is not None]
        moment = min((at for at in (self._span.not_after, *held) if at), default=NEVER)
        await self._news_within(min(LONGEST_SLEEP_S, max(moment - self._clock.now_ns(), 0) / 1e9 + 0.001))

    async def _news_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._frontier.wait_advanced()

    # When to deliver.

    async def _move(self) -> None:
        backlog, share = self._peer.backlog, self._share
        if not await self._room():
            await backlog.wait_drained(self._streams, more=True)
            return
        assert self._pin is not None
        self._pin.move(self._position)
        await share.wait_turn()
        try:
            chunk = await self._ahead.next_chunk(self.targets, self._span)
        except JournalError as error:
            oldest = self._facilities.journal.begins_at
            if error.code != "bookmark_gone" or oldest <= self._next_sequence:
                raise
            self._pass_over(oldest - 1, REMOVED)  # while the replay waited
            return
        if chunk is None:
            return
        await self._deliver(chunk, self._clock.seconds() - self._facilities.reader.worked_s)
        if backlog.has_room_for(self._streams) and self.targets:
            self._ahead.size.grow()

    async def _room(self) -> bool:
        """Wait until the client takes more. False when it hasn't for a moment: nothing is read ahead for it any more."""
        backlog = self._peer.backlog
        if backlog.can_send(self._streams):
            return True
        try:
            async with asyncio.timeout(STALLED_AFTER_S):
                await backlog.wait_drained(self._streams, more=True)
            return True
        except TimeoutError:
            self._ahead.on_stalled()
            return False

    async def _deliver(self, chunk: ReplayChunk, began: float) -> None:
        """`began` is when its turn did, on the clock of seconds, without what it waited for the reader thread: it is over when the
        client takes no more at once."""
        if chunk.first > self._next_sequence:
            self._pass_over(chunk.first - 1, DAMAGED)
        conflated = self._conflated(chunk.pieces)
        if chunk.begun:
            self._span = self._span._replace(not_before=0)
        if chunk.over:
            self._span = self._span._replace(last=chunk.following - 1)
        for target in self.targets:
            target.cursor.begun, target.cursor.span = target.cursor.begun or chunk.begun, self._span
            if target.conflating is not None:
                target.cursor.advance_to(chunk.following)
        if self._pace.rate is None and self.targets:
            self._ahead.schedule_next(self.targets, self._span, chunk.following)
        self._waiting.extend(conflated)
        if self._pace.rate is None:
            self._hand_over()
            self._share.charge(self._clock.seconds() - began)
        await self._pass()
        # What is left was let go. It is read again, and nothing that came before it.
        for target in self.targets:
            mine = (one for one in self._waiting if one.subscription is target.subscription)
            first = next(mine, None)
            target.cursor.advance_to(first.first_sequence if first is not None else chunk.following)
        self._waiting.clear()

    def _conflated(self, pieces: Sequence[BatchSlice], release: bool = False) -> Sequence[BatchSlice]:
        """What a conflated subscription, which has its replay alone, gets now; all others what was read."""
        conflating = self.targets[0].conflating
        if conflating is None:
            return pieces
        return conflating.add_replayed(
            pieces, release or self._next_sequence > self._frontier.durable, release
        )

    async def _pass(self, pieces: Iterable[BatchSlice] = ()) -> None:
        """Queue pieces as pace and client allow. A subscription may leave meanwhile, and takes with it what waits for it.

        What a client that stops wasn't given stays behind, but for what was conflated: that can't be read again.
        """
        self._waiting.extend(pieces)
        while True:
            wake_at = self._hand_over()
            if not (self._waiting and self.targets):
                return
            if wake_at:
                await self._pace.wait(wake_at)
            if not await self._room():
                if self.targets and self.targets[0].conflating is None:
                    return
                await self._peer.backlog.wait_drained(self._streams, more=True)

    def _hand_over(self) -> int:
        """Queue what is due and the client takes now. When more is due (monotonic, ns); 0 when it isn't the pace that waits."""
        if self._peer.is_closed:
            raise asyncio.CancelledError
        backlog, pace, wake_at = self._peer.backlog, self._pace, 0
        if self.targets and pace.rate is None and not backlog.lanes and self.targets[0].conflating is None:
            if backlog.has_room:  # almost always: the socket alone says how much
                self._queue(self._waiting)
            return 0
        while self._waiting and self.targets and not wake_at:
            # What was conflated is its client's, whether it takes it or not.
            conflated = self.targets[0].conflating is not None and pace.rate is None
            if not conflated and not backlog.can_send(self._streams):
                break
            group = self._taken_at_once()
            admitted, wake_at = pace.admit_batch(group)
            self._waiting.extendleft(reversed(group))
            due = deque(admitted)
            self._queue(due)
            self._waiting.extendleft(reversed(due))
        return wake_at

    def _taken_at_once(self) -> deque[BatchSlice]:
        """Take from what waits what the client takes at once, cut where a window ends; behind a full one a record shows that
        there is more."""
        if self.targets[0].conflating is not None:
            group, self._waiting = self._waiting, deque()
            return group
        backlog, waiting, group = self._peer.backlog, self._waiting, deque[BatchSlice]()
        room = backlog.sendable_bytes(self._streams)
        left = {stream: backlog.sendable_messages(stream) for stream in self._streams}
        while waiting and (not group or waiting[0].batch.nbytes <= room):
            piece, stream = waiting[0], waiting[0].subscription.stream
            number, most = piece.batch.count - piece.start, left.get(stream)
            room -= piece.batch.nbytes
            if most is not None and number > most:
                if most:
                    group.append(piece.first(most))
                    waiting[0] = piece.rest_after(most)
                break
            if most is not None:
                left[stream] = most - number
            group.append(waiting.popleft())
        return group

    def _queue(self, pieces: deque[BatchSlice]) -> None:
        """Queue these, a socket's worth at a time: what a socket that stops isn't handed stays. What was conflated doesn't."""
        backlog, now, room = self._peer.backlog, self._clock.now_ns(), PULL_BYTES
        targets: dict[object, ClientSubscription] = {target.subscription: target for target in self.targets}
        while pieces:
            nbytes = pieces[0].batch.nbytes
            if nbytes > room < PULL_BYTES:
                backlog.send()
                room = PULL_BYTES
                if not backlog.has_room and self.targets[0].conflating is None:
                    return
            room -= nbytes
            piece = pieces.popleft()
            target = targets.get(piece.subscription)
            if target is None:
                continue
            if piece.start:
                piece = piece.first(piece.batch.count - piece.start)
            subscription, source, length, rows, batch, target.recorded_at, _ = piece
            entry = OutboxEntry(
                subscription.stream, batch, rows, source, length, batch.count, batch.nbytes, now
            )
            if target.trail is not None:
                target.trail.record_sent(batch.first_sequence, batch.nbytes)
            if target.conflating is None:
                backlog.offer(entry)
                target.cursor.advance_to(batch.last_sequence + 1)
            else:
                backlog.offer_counted(entry)  # matched when it was held back
        for target in self.targets:
            if target.conflating is not None:
                target.conflating.first_sequence = target.conflating.first_of(self._waiting)
        backlog.send()

    # Gaps and the end.

    def _pass_over(self, last: int, why: str) -> None:
        """Tell each that needs records up to `last` that it will not get them, and go on behind. Skipped
        numbers are no gap."""
        journal = self._facilities.journal
        for target in self.targets:
            if target.cursor.next_sequence <= last:
                for lost in journal.lacks(target.cursor.next_sequence, last):
                    target.send_gap(self._facilities.instance, *lost, why)
                target.cursor.advance_to(last + 1)

    async def _end(self) -> None:
        """The end point is reached: say so when everything before it was sent, and end the subscriptions."""
        await self._pass(self._conflated([], release=True))
        await self._peer.backlog.wait_drained(self._streams)
        for target in self.targets:
            target.send_completed(ended=True)
        for target in self.targets:
            self._live.on_replay_ended(target)
