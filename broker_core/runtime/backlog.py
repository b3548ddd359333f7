"""What waits for one client, and its way to the socket: outbox and lanes in memory, spool on disk, live again.

    LIVE      offer → lane or outbox → flush → socket
    OFFLINED  offer → spool; nothing is sent
    DRAINING  offer → spool; `offline` sends from the spool's front as fast as the socket takes it

The order of a subscription's deliveries never changes: what waits goes to the spool whole and first, everything new
goes behind it, and the client is live again only when the spool is empty.

One law, checked by tests: matched = sent + given up (the ledger) + `waiting()`. Deliveries are given up by `_give_up`
alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from broker_core.delivery import (
    Cause,
    ClientState,
    Event,
    Lane,
    Lanes,
    Outbox,
    OutboxEntry,
    Tally,
    next_state,
    tally_of,
)
from broker_core.runtime.measuring import Measuring
from broker_core.runtime.offline import Offline
from broker_core.runtime.sink import PULL_BYTES, Sink
from broker_core.slow_clients.signals import Waiting
from broker_core.spool.spool import Spool

if TYPE_CHECKING:
    from broker_core.runtime.client_subscription import ClientSubscription
    from broker_core.runtime.connection import Connection

LANE_BYTES = PULL_BYTES // 8
"""What one lane may move to the outbox before its neighbours have their turn."""


class Backlog:
    """One client's deliveries. Satisfies `slow_clients.signals.Backlog`."""

    def __init__(self, connection: Connection, sink: Sink) -> None:
        self._connection = connection
        self._sink = sink
        self.outbox = Outbox()
        self.lanes = Lanes()
        """Of the few subscriptions that have one."""
        self.conflated_bytes = 0
        """What conflated subscriptions hold back; kept by `conflating`."""
        self.offline: Offline | None = None
        self.state = ClientState.CONNECTED
        self.offlined_at = 0
        self.blocked_since = 0
        self.sent_messages = 0
        self.sent_bytes = 0
        self.lost_messages = 0
        self.measuring = Measuring(connection)
        self._paced: list[tuple[Sequence[int], asyncio.Future[None]]] = []

    # What policy asks.

    @property
    def spool(self) -> Spool | None:
        """The backlog on disk; None while the client is live."""
        return self.offline.spool if self.offline is not None else None

    @property
    def nbytes(self) -> int:
        """Bytes in memory: outbox, lanes, what is held back, and what is on its way back from the spool."""
        nbytes = self.outbox.nbytes + self.conflated_bytes
        if self.lanes.filled:
            nbytes += self.lanes.nbytes
        return nbytes if self.offline is None else nbytes + self.offline.memory_bytes

    @property
    def messages(self) -> int:
        """Messages in memory."""
        in_flight = self.offline.in_flight_messages if self.offline is not None else 0
        return self.outbox.messages + self.lanes.messages + in_flight

    @property
    def oldest_at(self) -> int:
        """From when the oldest waiting delivery's age counts, ns; 0 when nothing waits."""
        oldest = self.outbox.oldest_at
        if self.lanes.filled or self.offline is not None:
            moments = [oldest, *self.lanes.oldest()]
            if self.offline is not None:
                moments += (self.offline.in_flight_oldest_at, self.offline.spool.oldest_at)
            oldest = min((moment for moment in moments if moment), default=0)
        return oldest

    def waiting(self) -> Waiting:
        """The counts for a decision."""
        offline = self.offline
        firsts = [self.outbox.first_sequence, *self.lanes.firsts()]
        if offline is not None:
            firsts += (offline.in_flight_first, offline.spool.first_sequence)
        first = min((sequence for sequence in firsts if sequence), default=0)
        unjournaled = self.outbox.unjournaled_messages + self.lanes.unjournaled_messages
        return Waiting(
            self.messages,
            offline.spool.messages if offline is not None else 0,
            unjournaled + (offline.copied_messages if offline is not None else 0),
            self._connection.bookmark_before(first) if first else "",
            self.blocked_since,
        )

    @property
    def spool_bytes(self) -> int:
        """Bytes of the spool file."""
        return self.offline.spool.disk_bytes if self.offline is not None else 0

    # The way in and out.

    def offer(self, entry: OutboxEntry) -> None:
        """Queue one delivery behind everything that waits. The caller flushes once per turn."""
        if self.offline is None and not self.lanes:  # almost always; the judged have lanes
            self.outbox.offer(entry)
            return
        if self.measuring.judged:
            self.measuring.touched.add(entry.stream)
        if self.offline is not None:
            self.offline.keep(entry)
        else:
            self.queue(entry)

    def queue(self, entry: OutboxEntry) -> None:
        """Queue one delivery in memory, in its lane if it has one."""
        lane = self.lanes.get(entry.stream)
        if lane is None:
            self.outbox.offer(entry)
        else:
            self.lanes.offer(lane, entry)

    def flush(self) -> None:
        """Hand the socket what it takes, then tell policy what is left."""
        if self.offline is None:
            self.send_waiting()
        self._connection.host.judging.judge(self._connection)
        if self.measuring.touched:
            self.measuring.look()

    def send_waiting(self) -> None:
        """Hand the socket what it takes of what waits in memory."""
        sink, outbox = self._sink, self.outbox
        while sink.writable:
            if self.lanes.filled:
                self._pull_lanes()
            if not outbox.nbytes:
                break
            self._send(outbox.pull(PULL_BYTES))
        if sink.writable:
            self.blocked_since = 0
            if self._paced:
                self._wake_paced()
        elif self.blocked_since == 0:
            self.blocked_since = self._connection.host.now_ns()

    def _pull_lanes(self) -> None:
        if self.measuring.judged:
            self.measuring.touched.update(self.lanes.filled)
        for entry in self.lanes.pull(LANE_BYTES, self._connection.host.now_ns()):
            self.outbox.offer(entry)

    def _send(self, entries: list[OutboxEntry]) -> None:
        self._sink.send_entries(entries)
        for entry in entries:
            self.sent_messages += entry.count
            self.sent_bytes += entry.nbytes

    def on_writable(self) -> None:
        """The socket takes bytes again."""
        self.blocked_since = 0
        self.go_on()

    def go_on(self) -> None:
        """Something that held deliveries back has changed: the socket, a window, a pause."""
        if self.state is ClientState.LIVE:
            self.flush()
        elif self.offline is not None:
            self.send_waiting()
            self.offline.wake()

    async def room(self, streams: Sequence[int] = ()) -> None:
        """Wait until the client has taken everything and is live: how replays are paced by the socket.

        Where the subscriptions of these streams have lanes, until nothing waits there either.
        """
        while self.state is not ClientState.CLOSED and not self.has_room_for(streams):
            waiter = asyncio.get_running_loop().create_future()
            self._paced.append((streams, waiter))
            await waiter

    @property
    def has_room(self) -> bool:
        """Whether the client is live and has taken everything, lanes apart."""
        return self.offline is None and not self.outbox.nbytes and self._sink.writable

    def has_room_for(self, streams: Sequence[int]) -> bool:
        """The same, and nothing waits in the lanes of these subscriptions."""
        return self.has_room and self.lanes.filled.keys().isdisjoint(streams)

    def take_back(self, stream: int) -> list[OutboxEntry]:
        """Take a replay's unsent deliveries out again, because its client has stopped reading. They are in the log."""
        if self.offline is not None:
            return []
        taken = self.outbox.take_stream(stream)
        lane = self.lanes.get(stream)
        if lane is not None:
            lane.put_back(taken)
            taken = lane.take_all()
            self.lanes.settle(stream)
        self._connection.host.judging.judge(self._connection)
        return taken

    def take_unsent(self) -> list[OutboxEntry]:
        """Take everything that waits in memory, each subscription's in its order: it goes to the spool."""
        return self.lanes.take_all(self.outbox.take_all())

    def _wake_paced(self) -> None:
        waiters, self._paced = self._paced, []
        for streams, waiter in waiters:
            if self.state is not ClientState.CLOSED and not self.lanes.filled.keys().isdisjoint(streams):
                self._paced.append((streams, waiter))
            elif not waiter.done():
                waiter.set_result(None)

    # Lanes.

    def acknowledged(self, lane: Lane) -> None:
        """Messages of a lane were acknowledged: its window may have room."""
        self.go_on()
        lane.look(self._connection.host.now_ns())
        self.measuring.acknowledged(lane.stream)

    def lane(self, stream: int) -> Lane:
        """The lane of a subscription, made when it has none: what waits for it moves there."""
        lane = self.lanes.get(stream)
        if lane is None:
            lane = self.lanes[stream] = Lane(stream)
            for entry in self.outbox.take_stream(stream):
                self.queue(entry)
        return lane

    def discard_oldest(self, stream: int, keep_messages: int, keep_bytes: int, rule: str) -> int:
        """Discard the oldest of a subscription until so much is left in memory; how many messages that were."""
        given_up = self.lane(stream).discard_oldest(keep_messages, keep_bytes)
        self._give_up(stream, tally_of(given_up), Cause.DISCARDED, rule)
        self.lanes.settle(stream)
        return sum(entry.count for entry in given_up)

    def give_up_entries(self, entries: Iterable[OutboxEntry], cause: Cause, rule: str = "") -> None:
        """Deliveries that will not be made, of any subscriptions, enter the ledger."""
        tallies: dict[int, Tally] = {}
        for entry in entries:
            tallies.setdefault(entry.stream, Tally()).add_entry(entry)
        for stream, tally in tallies.items():
            self._give_up(stream, tally, cause, rule)

    def give_up(self, tallies: dict[int, Tally], cause: Cause, rule: str = "") -> None:
        """The same for deliveries that are known as numbers only."""
        for stream, tally in tallies.items():
            self._give_up(stream, tally, cause, rule)

    def _give_up(self, stream: int, tally: Tally, cause: Cause, rule: str) -> None:
        if cause is Cause.DISCONNECTED:
            gone, kept = tally.parted()
            self._enter(stream, gone, cause, rule)
            self._enter(stream, kept, Cause.KEPT, rule)
        else:
            self._enter(stream, tally, cause, rule)

    def _enter(self, stream: int, tally: Tally, cause: Cause, rule: str) -> None:
        if tally.messages:
            self.lost_messages += tally.messages
            self._connection.lost(stream, tally, cause, rule)

    def drop_stream(self, stream: int, cause: Cause = Cause.UNSUBSCRIBED, rule: str = "") -> None:
        """A subscription ended: what waits for it in memory is given up, what is in the spool when it is reached."""
        entries = self.outbox.take_stream(stream) + self.lanes.end(stream)
        self._give_up(stream, tally_of(entries), cause, rule)

    def acknowledges(self, target: ClientSubscription) -> bool:
        """Whether a subscription says itself what it has."""
        lane = self.lanes.get(target.subscription.stream)
        return lane is not None and lane.window is not None

    def position_of(self, target: ClientSubscription) -> int:
        """Sequence of the first record that a subscription needs again: not acknowledged, or not sent."""
        stream = target.subscription.stream
        lane = self.lanes.get(stream)
        window = lane.window if lane is not None else None
        if window is not None and window.first_unacked:
            return window.first_unacked
        firsts = [lane.first_sequence if lane is not None else 0, self.outbox.first_sequence_of(stream), target.held_from]
        if self.offline is not None:
            firsts.append(self.offline.first_of(stream))
        waiting = min((sequence for sequence in firsts if sequence), default=0)
        host = self._connection.host
        following = target.next_sequence if target.replaying else host.dispatched_sequence + 1
        return max(waiting or following, window.last_acked + 1 if window is not None else 0)

    # Offline, drain, live again.

    def go_offline(self, spool: Spool) -> None:
        """Move everything that waits to the spool, in order, and drain it from now on when the client reads."""
        self.state = next_state(self.state, Event.OFFLINE)
        self.offlined_at = self._connection.host.now_ns()
        self.offline = Offline(self, self._connection, self._sink, spool)
        self.offline.start(self.take_unsent())

    def back_to_live(self) -> None:
        """The spool is empty."""
        self.state = next_state(self.state, Event.DRAINED)
        self._end_offline()
        self.offlined_at = 0
        self._connection.host.judging.went_live(self._connection)
        self.flush()

    def _end_offline(self) -> None:
        offline, self.offline = self.offline, None
        if offline is not None:
            offline.close()

    def close(self) -> None:
        """Give up everything that waits and remove the spool."""
        if self.state is ClientState.CLOSED:
            return
        self.state = next_state(self.state, Event.CLOSE)
        self.give_up_entries(self.lanes.take_all(self.outbox.take_all()), Cause.DISCONNECTED)
        if self.offline is not None:
            self.give_up(self.offline.tallies(), Cause.DISCONNECTED)
        self._end_offline()
        self.lanes.clear()
        self._wake_paced()
