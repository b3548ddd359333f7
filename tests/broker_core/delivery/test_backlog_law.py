"""Property tests of a client's backlog: matched = acknowledged + in flight + waiting + gone, whatever
happens.

A client is read, acknowledged, offlined, drained, paused, discarded, conflated, unsubscribed and closed. The
Backlog is real, with its outbox, queues and spool; socket, journal and time belong to the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.delivery import offline as offline_module
from broker_core.delivery.account import (
    DeliveryAccount,
    DiscardCause,
    MessageVolume,
    list_account_volumes,
    sum_volumes,
)
from broker_core.delivery.backlog import Backlog
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.keep_latest import keep_latest
from broker_core.delivery.lifecycle import ClientState, ClientStateEvent, next_state
from broker_core.delivery.loss_ledger import LossLedger
from broker_core.delivery.ports import InstanceResources
from broker_core.delivery.scheduling import ReplayFairShare, WorkScheduler
from broker_core.delivery.sink import UNKNOWN
from broker_core.delivery.spool.spool import Spool
from broker_core.delivery.subscription_queues import SubscriptionQueue
from broker_core.delivery.window import AckMode, AckWindow
from broker_core.journal.segment import BatchPosition
from broker_core.subscriptions.keys import parse_key

WINDOWED, PLAIN, SCRATCH = 1, 2, 3


FRAMING = 8


class ManualTime:
    """The scene's own."""

    def __init__(self, scene: BacklogModel) -> None:
        self._scene = scene

    def now_ns(self) -> int:
        return self._scene.now

    def monotonic_ns(self) -> int:
        return self._scene.now

    def seconds(self) -> float:
        return self._scene.now / 1e9


class SimulatedSocket:
    """A socket that accepts `room` bytes, then none until more room is given.

    The peer has received the bytes that the test adds to `took`.
    """

    window_step_bytes = 0
    receive_window = UNKNOWN

    def __init__(self) -> None:
        self.room = self.written_bytes = self.took = 0
        self.got: dict[int, list[int]] = {WINDOWED: [], PLAIN: [], SCRATCH: []}

    @property
    def is_writable(self) -> bool:
        return self.room > 0

    def acked_bytes(self) -> int:
        return self.took

    def take(self, nbytes: int) -> None:
        self.took = min(self.took + nbytes, self.written_bytes)

    def send_entries(self, entries: Sequence[OutboxEntry]) -> None:
        for entry in entries:
            self.room -= entry.nbytes
            self.written_bytes += entry.nbytes + FRAMING
            self.got[entry.stream] += [int(body) for body in entry.batch.bodies()]


class FakeSubscriber:
    """A subscription, reduced to its deliveries."""

    def __init__(self, stream: int) -> None:
        self.stream, self.id, self.topic = stream, f"s{stream}", "t"
        self.account = DeliveryAccount()
        self.is_shared = False
        self.can_fall_back = False
        self.is_paused = False

    def first_needed(self, waiting: int) -> int:
        return waiting


class FakePin:
    """A pin that the journal must respect."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence

    def move(self, sequence: int) -> None:
        self.sequence = max(self.sequence, sequence)

    def release(self) -> None:
        self.sequence = 1 << 62


class BacklogModel:
    """One client with three subscriptions: with an ack window, plain, and of a topic that is not
    journaled.
    """

    def __init__(self, directory: Path) -> None:
        self.socket, self.now, self.offered, self.reads = SimulatedSocket(), 1, 0, 0
        self.log: dict[int, Batch] = {}
        self._log_end = 4_096
        self.subscribers = {stream: FakeSubscriber(stream) for stream in (WINDOWED, PLAIN, SCRATCH)}
        self._tasks: list[asyncio.Task[None]] = []
        self.clock: Any = ManualTime(self)
        self.ledger, self._pin = LossLedger(), FakePin(1 << 62)
        log: Any = self
        facilities = InstanceResources(
            "i",
            self.clock,
            log,
            log,
            ReplayFairShare(self.clock),
            WorkScheduler(self.clock),
            self.ledger,
            self._spawn,
        )
        self.name, self.facilities, self._directory, self._spools = "c", facilities, directory, 0
        sink: Any = self.socket
        self.backlog = Backlog(self, sink, facilities)
        self.backlog.state = next_state(self.backlog.state, ClientStateEvent.LOGGED_ON)
        self.backlog.queues[WINDOWED] = SubscriptionQueue(WINDOWED, AckWindow(AckMode.CLIENT, 4))
        for subscriber in self.subscribers.values():
            self.backlog.add_subscription(subscriber)

    @property
    def streams(self) -> set[int]:
        """Streams of the current subscriptions."""
        return set(self.backlog.recipients)

    # The client.

    def mark_changed(self) -> None: ...
    def on_live(self) -> None: ...
    def fail(self, error: Exception) -> None:
        raise error

    def on_spool_failed(self, error: Exception) -> None:
        raise error

    def close(self, code: str, message: str) -> None:
        raise AssertionError(f"{code}: {message}")

    # The log and its reader thread.

    worked_s = 0.0

    def pin(self, sequence: int, _owner: str) -> FakePin:
        self._pin = FakePin(sequence)
        return self._pin

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        self.reads += 1
        await asyncio.sleep(0)  # others have their turn while the disk is read
        return work(*arguments)

    def read_span(self, position: BatchPosition, length: int) -> list[tuple[int, Batch]]:
        """The log's batches have their length, and stand one behind another."""
        end = position.offset + length
        return [(at, batch) for at, batch in sorted(self.log.items()) if position.offset <= at < end]

    def publish(self, stream: int, count: int) -> None:
        if stream not in self.streams or self.backlog.state is ClientState.CLOSED:
            return
        first = self.offered + 1
        self.offered += count
        numbers = range(first, first + count)
        batch = Batch.parse(
            build_single_topic_batch("p", f"t{first % 2}", [b"%d" % number for number in numbers])
        )
        source = None
        if stream != SCRATCH:
            batch.stamp(origin=1, epoch=1, first_sequence=first, accepted_at=self.now)
            source = BatchPosition(1, self._log_end)
            self.log[self._log_end] = batch
            self._log_end += batch.nbytes
        self.backlog.offer(
            OutboxEntry(
                stream, batch, None, source, batch.nbytes if source else 0, count, batch.nbytes, self.now
            )
        )
        self.backlog.send()

    def offline(self) -> None:
        if self.backlog.state is ClientState.LIVE:
            self._spools += 1
            self.backlog.go_offline(Spool(self._directory / f"{self._spools}.spool"))

    def acknowledge(self, number: int) -> None:
        lane = self.backlog.queues.get(WINDOWED)
        if lane is not None and lane.window is not None and lane.window.unacked_messages:
            got = len(self.socket.got[WINDOWED])
            upto = min(got, number + got - lane.window.unacked_messages)
            if upto > 0:
                self.backlog.acknowledge(WINDOWED, upto, upto)
            self.backlog.resume_sending()

    def unsubscribe(self, stream: int) -> None:
        if stream in self.streams and self.backlog.state is not ClientState.CLOSED:
            self.backlog.remove_subscription(self.subscribers[stream], DiscardCause.UNSUBSCRIBED, "")

    def check(self) -> None:
        backlog, account = self.backlog, self.backlog.account
        assert self.offered == account.matched.messages
        for one in (account, *(subscriber.account for subscriber in self.subscribers.values())):
            assert one.matched == sum_volumes(amount for _, amount in list_account_volumes(one))
            assert all(amount.messages >= 0 and amount.nbytes >= 0 for _, amount in list_account_volumes(one))
        assert account.delivered.messages == sum(map(len, self.socket.got.values()))
        assert sum(self.queued().values()) == account.waiting.messages
        for stream, waiting in self.queued().items():
            assert waiting == self.subscribers[stream].account.waiting.messages
        assert self.ledger.messages == account.discarded_volume.messages
        self.check_causes(account)
        for got in self.socket.got.values():
            assert got == sorted(got) and len(got) == len(set(got))
        if backlog.offline is not None:
            needed = (backlog.offline.chunk_first, backlog.offline.spool.first_sequence)
            assert all(self._pin.sequence <= first for first in needed if first), (
                "the journal keeps what is referred to"
            )
        self.check_running(backlog)
        held = backlog.spool.requeued_bytes if backlog.spool is not None else 0
        assert backlog.nbytes >= held >= 0 and bool(backlog.nbytes - held) == bool(backlog.messages)

    def check_running(self, backlog: Backlog) -> None:
        """Check incrementally maintained figures against figures computed from all entries."""
        assert backlog.outstanding == sum_volumes(map(backlog.get_outstanding, backlog.recipients.values()))
        lanes = list(backlog.queues.values())
        assert backlog.queues.messages == sum(one.messages for one in lanes)
        assert backlog.queues.nbytes == sum(one.nbytes for one in lanes)
        assert backlog.queues.oldest_at == min((one.oldest_at for one in lanes if one.messages), default=0)
        unacked = [
            one.window.oldest_accepted_at
            for one in lanes
            if one.window is not None and one.window.unacked_messages
        ]
        assert backlog.queues.unacked_at == min(unacked, default=0)

    def check_causes(self, account: DeliveryAccount) -> None:
        """Check that journaled records are never counted as lost at disconnect, nor others as kept."""
        journaled, scratch = account.journaled, account.unjournaled
        kept = account.discarded.get(DiscardCause.STORED, MessageVolume())
        assert kept.messages <= journaled.discarded_waiting.messages + journaled.discarded_in_flight.messages
        lost = account.discarded.get(DiscardCause.DISCONNECTED, MessageVolume())
        assert lost.messages <= scratch.discarded_waiting.messages + scratch.discarded_in_flight.messages

    def queued(self) -> dict[int, int]:
        """Messages that really lie somewhere, by subscription: in the outbox, a lane, the spool, or on their
        way back.
        """
        backlog, found = self.backlog, dict.fromkeys(self.streams, 0)
        for entry in backlog.outbox:
            found[entry.stream] += entry.count
        for stream, lane in backlog.queues.items():
            found[stream] += lane.messages
        if backlog.offline is not None:
            for stream, tally in backlog.offline.tallies().items():
                if stream in found:
                    found[stream] += tally.messages
        return found

    async def run_until_idle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
            self.check()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 3), st.integers(1, 6)),
        st.tuples(st.just("publish"), st.integers(1, 3), st.integers(1, 6)),
        st.tuples(st.just("read"), st.integers(1, 2_000), st.just(0)),
        st.tuples(st.just("took"), st.integers(1, 1_000), st.just(0)),
        st.tuples(st.just("ack"), st.integers(1, 6), st.just(0)),
        st.tuples(st.just("offline"), st.just(0), st.just(0)),
        st.tuples(st.just("turn"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("discard"), st.integers(1, 3), st.integers(0, 5)),
        st.tuples(st.just("conflate"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("pause"), st.integers(1, 3), st.booleans().map(int)),
        st.tuples(st.just("unsubscribe"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("close"), st.just(0), st.just(0)),
    ),
    max_size=50,
)


async def play(scene: BacklogModel, plan: list[tuple[str, int, int]]) -> None:
    backlog = scene.backlog
    for what, one, two in plan:
        scene.now += 1
        live = backlog.state is not ClientState.CLOSED
        if what == "publish":
            scene.publish(one, two)
        elif what == "read" and live:
            scene.socket.room += one
            backlog.on_writable()
        elif what == "took" and live:
            scene.socket.take(one)
            backlog.update_progress()
        elif what == "ack" and live:
            scene.acknowledge(one)
        elif what == "offline":
            scene.offline()
        elif what == "turn":
            for _ in range(one):
                await asyncio.sleep(0)
        elif what == "discard" and live and one in scene.streams and backlog.offline is None:
            backlog.discard_oldest(one, two, 0, "limit")
        elif what == "conflate" and live and one in scene.streams and backlog.offline is None:
            keep_latest(backlog, scene.facilities, one, parse_key("topic").key_of_record(None), "limit")
        elif what == "pause" and live and one in scene.streams and backlog.offline is None:
            backlog.ensure_queue(one).paused = bool(two)
            backlog.resume_sending()
        elif what == "unsubscribe":
            scene.unsubscribe(one)
        elif what == "close" and len(plan) % 3 == 0:
            backlog.close()
        scene.check()
    await scene.run_until_idle()


async def drained(scene: BacklogModel) -> None:
    """Let the client read and acknowledge everything; check that no entry is left."""
    backlog = scene.backlog
    for lane in backlog.queues.values():
        lane.paused = False
    for _ in range(400):
        scene.socket.room = 1 << 20
        scene.acknowledge(4)
        backlog.on_writable()
        await asyncio.sleep(0)
        scene.check()
        if not backlog.messages and backlog.offline is None:
            return
    raise AssertionError(f"{backlog.messages} messages stay behind, {backlog.state}")


LANES_APART = [
    ("read", 1, 0),
    ("publish", 1, 1),
    ("publish", 2, 1),
    ("publish", 1, 1),
    ("conflate", 2, 0),
    ("offline", 0, 0),
]
"""A plan in which the first queue does not hold the oldest record."""


CONFLATED_WHILE_MORE_CAME = [("publish", 2, 2), ("conflate", 2, 0), ("publish", 2, 1)]


COPIES_IN_THE_SPOOL = [
    ("publish", 1, 5),
    ("publish", 3, 1),
    ("pause", 3, 1),
    ("read", 217, 0),
    ("offline", 0, 0),
]
"""A plan in which unjournaled entries keep their age through the spool."""


@settings(max_examples=150, deadline=None)
@example(plan=COPIES_IN_THE_SPOOL, stalled_after_s=1.0)
@example(plan=CONFLATED_WHILE_MORE_CAME, stalled_after_s=1.0)
@example(plan=LANES_APART, stalled_after_s=1.0)
@given(steps, st.sampled_from((1.0, 0.0)))
def test_every_message_is_sent_given_up_or_waiting(
    plan: list[tuple[str, int, int]], stalled_after_s: float
) -> None:
    """With no patience, a drain returns entries to the spool that are not accepted immediately."""

    async def run() -> None:
        with TemporaryDirectory() as directory:
            scene = BacklogModel(Path(directory))
            await play(scene, plan)
            if scene.backlog.state is not ClientState.CLOSED:
                await drained(scene)
                assert scene.backlog.state is ClientState.LIVE
            scene.backlog.close()
            scene.check()
            assert (
                scene.backlog.waiting().outbox_messages == 0
                and not scene.backlog.account.outstanding.messages
            )

    with patch.object(offline_module, "STALLED_AFTER_S", stalled_after_s):
        asyncio.run(run())


def test_an_offlined_client_without_acknowledgements_waits_on_disk_with_a_full_window() -> None:
    """The socket accepts everything; entries behind the full window are not read from disk again and
    again.
    """

    async def run() -> None:
        with TemporaryDirectory() as directory:
            scene = BacklogModel(Path(directory))
            backlog, lane = scene.backlog, scene.backlog.queues[WINDOWED]
            scene.socket.room = 1 << 20
            scene.publish(WINDOWED, 4)
            scene.publish(WINDOWED, 1)
            lane.update_window_full(full_since := scene.now)
            scene.offline()
            reads = 0
            for _ in range(20):
                scene.now += 1_000_000_000
                scene.publish(WINDOWED, 1)
                await scene.run_until_idle()
                lane.update_window_full(scene.now, backlog.is_spooled(WINDOWED))
                assert (lane.full_since, lane.times_full) == (full_since, 1)
                reads += scene.reads
                scene.reads = 0
            assert backlog.state is ClientState.OFFLINED and not backlog.messages and reads == 1
            await drained(scene)
            assert scene.socket.got[WINDOWED] == list(range(1, 26)) and lane.full_since == 0
            backlog.close()

    with patch.multiple(offline_module, STALLED_AFTER_S=0.0, PULL_BYTES=1):
        asyncio.run(run())


def test_what_is_behind_a_full_window_comes_when_its_subscription_ends() -> None:
    async def run() -> None:
        with TemporaryDirectory() as directory:
            scene = BacklogModel(Path(directory))
            scene.socket.room = 1 << 20
            scene.publish(WINDOWED, 4)
            scene.publish(WINDOWED, 1)
            scene.offline()
            await scene.run_until_idle()
            scene.publish(PLAIN, 2)
            await scene.run_until_idle()
            assert not scene.socket.got[PLAIN], "the spool is brought back in order"
            scene.unsubscribe(WINDOWED)
            await scene.run_until_idle()
            assert scene.socket.got[PLAIN] == [6, 7] and scene.backlog.state is ClientState.LIVE
            scene.backlog.close()

    with patch.multiple(offline_module, STALLED_AFTER_S=0.0, PULL_BYTES=1):
        asyncio.run(run())
