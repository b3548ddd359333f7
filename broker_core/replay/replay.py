"""Task that reads the log for bookmark subscriptions until their end point, or until they become live.

    where to read next     ReplaySpan, decided in span.py, and each subscription's next_sequence
    which rows to select   read_ahead.read_chunk, in the reader thread; then a conflator, if there is one
    when to deliver        the replay's rate, then the client's socket: Backlog.can_send

One replay serves one subscription, or several subscriptions of one client that were resumed together
(`replay.control`). In the second case it reads the log once and delivers in the journal's order across them.
Each subscription has its own position, so it can leave the replay between any two records and continue later.

The step from replay to live delivery runs in one iteration of the event loop, without an await: the cursor
has passed every dispatched record, and the subscription is live before the next group of batches is
dispatched. The law that this preserves is in `cursor`.

A replay is only as fast as its client. It queues the part of a chunk that socket, window and credit accept
immediately, and only after the client has taken everything before. So replayed records never make a client
count as slow, however small its limits are. When a client stops reading, the replay releases the records that
it could not queue and reads them again later, so a thousand waiting replays use almost no memory. All replays
read through one thread, one chunk at a time.
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
from broker_core.replay.client_subscription import DAMAGED, REMOVED, UNKNOWN, ClientSubscription
from broker_core.replay.cursor import DurableFrontier
from broker_core.replay.rate_limit import ReplayRate, ReplayRateLimiter
from broker_core.replay.read_ahead import ReadAhead, ReplayChunk
from broker_core.replay.span import NEVER, ReplaySpan

log = structlog.get_logger("sluice.replay")
STALLED_AFTER_S = 0.05
"""A client that takes nothing for this long counts as stalled: its replays release the chunks they read
ahead."""
LONGEST_SLEEP_S = 60.0
"""Longest sleep before the clock is read again: an operator or NTP may have set it meanwhile."""


class LiveHandover(Protocol):
    """Callbacks at the end of a replay; `engine.subscriptions` implements them."""

    def make_live(self, target: ClientSubscription) -> None:
        """Deliver new records to the subscription, from the next batch on.

        The subscription has every record dispatched so far.
        """

    def remove_from_live(self, target: ClientSubscription) -> None: ...
    def on_fallback(self, target: ClientSubscription) -> int:
        """Stop sending new records to a subscription that reads from the log again, and count them instead.

        A record is counted once it is on disk, because a replay can't read it earlier. Returns the newest
        sequence up to which the subscription was given every record.
        """

    def on_replay_ended(self, target: ClientSubscription) -> None: ...


class Replay:
    """Replay of one subscription, or of several that share it. `run` is the body of its task.

    Three kinds of subscription never become live: new records also pass through the replay. These are replays
    with a rate (the rate applies to new records), managed replays (they store their position), and
    `fully_durable` subscriptions in a group (other members store records later than this one).
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
        """Slices that were read and wait for the rate limit or for the client."""
        self._end_requested_at = 0
        """Monotonic ns of the first request for the log's end; 0 before that request."""
        self._end_sequence: int | None = None
        """Newest record of the log, from the answer to that request; None until it arrives."""
        self.task: asyncio.Task[None] | None = None
        self._pin: Pin | None = None

    @property
    def _next_sequence(self) -> int:
        """First sequence that at least one of the subscriptions has not been given."""
        return min(target.cursor.next_sequence for target in self.targets)

    @property
    def _streams(self) -> list[int]:
        """Stream numbers of the subscriptions."""
        return [target.stream for target in self.targets]

    @property
    def _position(self) -> int:
        """First sequence that may have to be read again; the pin of the log stays at it."""
        return min(target.first_needed(0) for target in self.targets)

    def remove_subscription(self, target: ClientSubscription) -> None:
        """Remove one subscription from this replay, at its current position.

        Its slices that were read and not queued are read again when it continues; conflated ones stay in its
        conflator. The task is cancelled when no subscription remains.
        """
        self.targets.remove(target)
        self._ahead.stop()
        queued = [
            batch_slice for batch_slice in self._waiting if batch_slice.subscription is target.subscription
        ]
        if target.conflating is not None:
            target.conflating.requeue_slices(queued)
        elif queued:
            target.cursor.advance_to(queued[0].first_sequence)
        if queued:
            others = [
                batch_slice
                for batch_slice in self._waiting
                if batch_slice.subscription is not target.subscription
            ]
            self._waiting = deque(others)
        target.serving_replay = None
        if not self.targets and self.task is not None:
            self.task.cancel()

    def set_rate(self, rate: ReplayRate | None) -> None:
        """Set the rate from the next record on; None removes the limit."""
        self._pace.set_rate(rate)

    async def run(self) -> None:
        """Deliver the span, then end the subscriptions or make them live."""
        try:
            self._share.replays += 1
            await self._seek()
            while not self._peer.is_closed and await self._step():
                pass
        except JournalError as error:
            # Without an error reply the client would take the silence for an empty log.
            self._peer.fail(error)
        except Exception:
            log.exception(
                "replay_failed", client=self._peer.name, subscriptions=[one.id for one in self.targets]
            )
            self._peer.close("internal_error", "The broker couldn't read this client's records from the log.")
        finally:
            self._share.replays -= 1
            self._ahead.stop()
            if self._pin is not None:
                self._pin.release()

    @property
    def pinned_from(self) -> int | None:
        """First sequence that this replay pins in the log; None before it has found its start."""
        return self._pin.sequence if self._pin is not None else None

    @property
    def is_due(self) -> bool:
        """Whether the replay should make progress now. The watchdog reports a replay that is due and stuck.

        True when neither the client nor the rate delays it, and it has records to read, an end to report, or
        a subscription to make live. Also true when the task has ended: then no subscription should refer to
        it.
        """
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

    # The end of the log.

    def _read_end(self) -> int | None:
        """Return the sequence up to which records must be delivered before the replay may report `completed`.

        Returns None until the log service has confirmed the end. Starts the confirmed read on the first call.
        """
        end = self._frontier.end
        if end is None:
            return 0  # a single broker: the records that existed at the request are enough
        if self._end_sequence is None:
            self._end_requested_at = self._end_requested_at or self._clock.monotonic_ns()
            if end.was_read_since(self._end_requested_at):
                self._end_sequence = end.sequence
        return self._end_sequence

    @property
    def _waits_for_end(self) -> bool:
        """Whether the log's end was requested and is not confirmed yet."""
        return self._end_requested_at > 0 and self._end_sequence is None

    # The next sequence to read.

    async def _seek(self) -> None:
        """Find the first record of a span that begins at a moment; sleep while the moment is in the future.

        Sends `completed` as soon as the end of the log is confirmed and the moment has not come: until then
        the log has no record for the subscriptions. Then pins the log at the start.
        """
        journal, at = self._facilities.journal, self._span.not_before
        completed = self._span.is_bounded
        while (remaining_ns := at - self._clock.now_ns()) > 0:
            # Read the end first: a record may arrive while the log is searched.
            knows_end = completed or self._read_end() is not None
            if await self._is_in_the_log(at):
                break
            if knows_end and not completed:
                completed = True
                for target in self.targets:
                    target.send_completed()
            seconds = min(remaining_ns / 1e9, LONGEST_SLEEP_S)
            await (asyncio.sleep(seconds) if completed else self._wait_within(seconds))
        self._pin = journal.pin(self._position, f"replay of {self._peer.name}", self._peer.durable_owner(""))
        for target in self.targets:
            target.unpin()
        if at:
            found = await self._facilities.reader.run(journal.sequence_at, at)
            # `found` may lie beyond the frontier: those records may still be older than the moment.
            # read_chunk checks each batch's time.
            for target in self.targets:
                target.cursor.advance_to(max(min(found, self._frontier.durable + 1), self._span.first))
        for target in self.targets:
            if target.managed is not None:
                target.managed.began_at = target.managed.began_at or target.cursor.next_sequence

    async def _is_in_the_log(self, moment: int) -> bool:
        """Return whether the log has a record accepted at `moment` (ns UTC) or later.

        The records' own times count, because this machine's clock may lag behind the brokers that stamped
        them.
        """
        found = await self._facilities.reader.run(self._facilities.journal.sequence_at, moment)
        return found <= self._frontier.durable

    async def _step(self) -> bool:
        """Do the next piece of work; return False when the replay is finished."""
        durable, span = self._frontier.durable, self._span
        if span.is_past_end(self._next_sequence, self._frontier.stamped, self._clock.now_ns()):
            if self._next_sequence <= span.last and self._read_end() is None:
                await self._wait_within(LONGEST_SLEEP_S)
                return True
            await self._end()
            return False
        if self._next_sequence <= durable and self._has_no_more_matches:
            self._ahead.stop()
            for target in self.targets:
                target.cursor.advance_to(durable + 1)
        caught_up = self._caught_up()
        # Records delivered before they were on disk (durability `live`) are dispatched a second time when
        # they are. Such a subscription must not become live before that, or the second dispatch would reach
        # it.
        was_shown_early = any(one.account.last_matched > durable for one in self.targets)
        if caught_up:
            await self._pass(self._conflated([], release=True))
            # Replies overtake records in the outbox; `completed` must follow the records that it covers.
            await self._peer.backlog.wait_drained(self._streams)
            for target in caught_up:
                target.send_completed()
            durable = self._frontier.durable
        if self._next_sequence <= durable:
            await self._move()
        elif due := self._conflated([]):
            await self._pass(due)  # then check again: the rate may have been removed meanwhile
        elif span.is_bounded or span.not_before or self._follows or was_shown_early or self._waits_for_end:
            await self._wait_for_progress()
        elif self._peer.backlog.offline is not None:
            # Stay on the log until the spool is drained: records written meanwhile don't have to be copied to
            # the spool.
            await self._peer.backlog.wait_drained(self._streams)
        else:
            for target in self.targets:
                self._live.make_live(target)
            return False
        return True

    def _caught_up(self) -> list[ClientSubscription]:
        """Return the subscriptions that reached the confirmed end and were not sent `completed` yet."""
        found = [
            one for one in self.targets if not one.completed and one.cursor.is_caught_up(one.caught_up_at)
        ]
        if not found or self._span.is_bounded or (end := self._read_end()) is None:
            return []
        for target in found:
            target.caught_up_at = max(target.caught_up_at, end)
        return [one for one in found if one.cursor.is_caught_up(one.caught_up_at)]

    @property
    def _has_no_more_matches(self) -> bool:
        """Whether the rest of the log certainly has no record for the subscriptions; it is then not read.

        Without this check a thousand idle queues would never reach the end of a log that is written
        meanwhile.
        """
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
        """Whether new records are also delivered by this replay, so its subscriptions never become live."""
        return self._pace.rate is not None or any(
            one.managed or one.durability == "fully_durable" for one in self.targets
        )

    async def _wait_for_progress(self) -> None:
        """Wait for more dispatched records, the span's end time, or the end of a conflation interval."""
        deadlines = [target.conflating.ends_at for target in self.targets if target.conflating is not None]
        moment = min((at for at in (self._span.not_after, *deadlines) if at), default=NEVER)
        await self._wait_within(min(LONGEST_SLEEP_S, max(moment - self._clock.now_ns(), 0) / 1e9 + 0.001))

    async def _wait_within(self, seconds: float) -> None:
        """Wait until more records are dispatched, at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._frontier.wait_advanced()

    # Delivery: the rate, then the client.

    async def _move(self) -> None:
        """Read the next chunk and deliver it; if the client has stalled, wait until it accepts more.

        Raises JournalError, except for records that were removed meanwhile: these become a gap.
        """
        backlog, share = self._peer.backlog, self._share
        if not await self._wait_for_client():
            await backlog.wait_drained(self._streams, more=True)
            return
        assert self._pin is not None
        self._pin.move(self._position)
        await share.wait_slot()
        try:
            chunk = await self._ahead.next_chunk(self.targets, self._span)
        except JournalError as error:
            oldest = self._facilities.journal.begins_at
            if error.code != "bookmark_gone" or oldest <= self._next_sequence:
                raise
            self._skip_unavailable(oldest - 1, REMOVED)  # removed while the replay waited
            return
        if chunk is None:
            return
        await self._deliver(chunk, self._clock.seconds() - self._facilities.reader.worked_s)
        if backlog.is_drained_for(self._streams) and self.targets:
            self._ahead.size.grow()

    async def _wait_for_client(self) -> bool:
        """Wait until the client accepts more, at most STALLED_AFTER_S.

        Returns False when it does not; the chunks read ahead for it are then released.
        """
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
        """Deliver one chunk and advance the cursors past it.

        Args:
            began: Start of this replay's time slice in seconds of the clock, without the wait for the reader
                thread. The slice ends when the client accepts no more immediately; its length is charged to
                the shared budget.
        """
        if chunk.first > self._next_sequence:
            self._skip_unavailable(chunk.first - 1, DAMAGED)
        conflated = self._conflated(chunk.slices)
        if chunk.has_reached_start:
            self._span = self._span._replace(not_before=0)
        if chunk.is_last:
            self._span = self._span._replace(last=chunk.following - 1)
        for target in self.targets:
            target.cursor.has_reached_start, target.cursor.span = (
                target.cursor.has_reached_start or chunk.has_reached_start,
                self._span,
            )
            if target.conflating is not None:
                target.cursor.advance_to(chunk.following)
        if self._pace.rate is None and self.targets:
            self._ahead.schedule_next(self.targets, self._span, chunk.following)
        self._waiting.extend(conflated)
        if self._pace.rate is None:
            self._queue_admitted()
            self._share.charge(self._clock.seconds() - began)
        await self._pass()
        # `_pass` released the slices that the client did not accept. Each cursor stops before its first such
        # record, so exactly those are read again.
        for target in self.targets:
            queued = (one for one in self._waiting if one.subscription is target.subscription)
            first = next(queued, None)
            target.cursor.advance_to(first.first_sequence if first is not None else chunk.following)
        self._waiting.clear()

    def _conflated(self, slices: Sequence[BatchSlice], release: bool = False) -> Sequence[BatchSlice]:
        """Return the slices to deliver now: `slices`, or for a conflating subscription its due records.

        A conflating subscription never shares its replay. `release`: also return records whose interval has
        not ended.
        """
        conflating = self.targets[0].conflating
        if conflating is None:
            return slices
        return conflating.add_replayed(
            slices, release or self._next_sequence > self._frontier.durable, release
        )

    async def _pass(self, slices: Iterable[BatchSlice] = ()) -> None:
        """Queue slices as the rate and the client allow.

        Returns when everything is queued, no subscription remains, or the client stalls. The slices that a
        stalled client did not accept stay in `_waiting`. Conflated slices can't be read again, so with these
        it waits until the client accepts them.
        """
        self._waiting.extend(slices)
        while True:
            wake_at = self._queue_admitted()
            if not (self._waiting and self.targets):
                return
            if wake_at:
                await self._pace.wait(wake_at)
            if not await self._wait_for_client():
                if self.targets and self.targets[0].conflating is None:
                    return
                await self._peer.backlog.wait_drained(self._streams, more=True)

    def _queue_admitted(self) -> int:
        """Queue the slices that the rate allows and the client accepts now.

        Returns when the rate allows more (monotonic ns), or 0 when the rate is not the reason for waiting.
        Raises CancelledError when the client is closed.
        """
        if self._peer.is_closed:
            raise asyncio.CancelledError
        backlog, pace, wake_at = self._peer.backlog, self._pace, 0
        if self.targets and pace.rate is None and not backlog.queues and self.targets[0].conflating is None:
            if backlog.is_drained:  # the common case: no windows and no rate, so the socket alone limits
                self._queue(self._waiting)
            return 0
        while self._waiting and self.targets and not wake_at:
            # A conflator holds only the newest record of a key, so its output goes to the outbox even if the
            # client is slow.
            conflated = self.targets[0].conflating is not None and pace.rate is None
            if not conflated and not backlog.can_send(self._streams):
                break
            group = self._pop_acceptable()
            admitted, wake_at = pace.admit_batch(group)
            self._waiting.extendleft(reversed(group))
            due = deque(admitted)
            self._queue(due)
            self._waiting.extendleft(reversed(due))
        return wake_at

    def _pop_acceptable(self) -> deque[BatchSlice]:
        """Remove from `_waiting` the slices that the client accepts immediately, and return them.

        A slice is cut where its subscription's window ends. A subscription with a full window stops the batch
        here, so the next record of the log stays first and the order across subscriptions is kept.
        """
        if self.targets[0].conflating is not None:
            group, self._waiting = self._waiting, deque()
            return group
        backlog, waiting, group = self._peer.backlog, self._waiting, deque[BatchSlice]()
        free_bytes = backlog.sendable_bytes(self._streams)
        free_slots = {stream: backlog.sendable_messages(stream) for stream in self._streams}
        while waiting and (not group or waiting[0].batch.nbytes <= free_bytes):
            batch_slice, stream = waiting[0], waiting[0].subscription.stream
            number, limit = batch_slice.batch.count - batch_slice.start, free_slots.get(stream)
            free_bytes -= batch_slice.batch.nbytes
            if limit is not None and number > limit:
                if limit:
                    group.append(batch_slice.first(limit))
                    waiting[0] = batch_slice.drop_first(limit)
                break
            if limit is not None:
                free_slots[stream] = limit - number
            group.append(waiting.popleft())
        return group

    def _queue(self, slices: deque[BatchSlice]) -> None:
        """Queue `slices`, at most PULL_BYTES between two sends, and advance the cursors.

        Slices that a full socket does not accept stay in the deque, except conflated ones, which are always
        queued.
        """
        backlog, now, free_bytes = self._peer.backlog, self._clock.now_ns(), PULL_BYTES
        targets: dict[object, ClientSubscription] = {target.subscription: target for target in self.targets}
        while slices:
            nbytes = slices[0].batch.nbytes
            if nbytes > free_bytes < PULL_BYTES:
                backlog.send()
                free_bytes = PULL_BYTES
                if not backlog.is_drained and self.targets[0].conflating is None:
                    return
            free_bytes -= nbytes
            batch_slice = slices.popleft()
            target = targets.get(batch_slice.subscription)
            if target is None:
                continue
            if batch_slice.start:
                batch_slice = batch_slice.first(batch_slice.batch.count - batch_slice.start)
            subscription, source, length, rows, batch, target.recorded_at, _ = batch_slice
            entry = OutboxEntry(
                subscription.stream, batch, rows, source, length, batch.count, batch.nbytes, now
            )
            if target.trail is not None:
                target.trail.record_sent(batch.first_sequence, batch.nbytes)
            if target.conflating is None:
                backlog.offer(entry)
                target.cursor.advance_to(batch.last_sequence + 1)
            else:
                backlog.offer_counted(entry)  # the conflator counted it as matched when it buffered it
        for target in self.targets:
            if target.conflating is not None:
                target.conflating.first_sequence = target.conflating.get_first_needed(self._waiting)
        backlog.send()

    # Gaps and the end.

    def _skip_unavailable(self, last: int, reason: str) -> None:
        """Send gap notices for the unavailable records up to `last`, and move the cursors after them.

        Sequences that were never assigned to a record are no gap. The notices have `reason`, unless it isn't
        known whether the sequences had records.
        """
        journal = self._facilities.journal
        for target in self.targets:
            if target.cursor.next_sequence <= last:
                for begin, end, is_unknown in journal.gaps(target.cursor.next_sequence, last):
                    target.send_gap(self._facilities.instance, begin, end, UNKNOWN if is_unknown else reason)
                target.cursor.advance_to(last + 1)

    async def _end(self) -> None:
        """Finish at the end point: deliver the rest, send `completed`, and end the subscriptions."""
        await self._pass(self._conflated([], release=True))
        await self._peer.backlog.wait_drained(self._streams)
        for target in self.targets:
            target.send_completed(is_end=True)
        for target in self.targets:
            self._live.on_replay_ended(target)
