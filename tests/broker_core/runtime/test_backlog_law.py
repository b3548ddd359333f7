"""matched = sent + given up + waiting, whatever happens to a client: offlined, drained, paused, discarded, conflated.

A real Backlog with its outbox, lanes and spool; the socket, the journal and the time are the test's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch, build_one_topic
from broker_core.delivery import (
    AckMode,
    Cause,
    ClientState,
    Event,
    Lane,
    OutboxEntry,
    Tally,
    Window,
    next_state,
)
from broker_core.journal.segment import Position
from broker_core.runtime import offline as offline_module
from broker_core.runtime.backlog import Backlog
from broker_core.runtime.latest import keep_latest
from broker_core.runtime.turns import Turns
from broker_core.spool.spool import Spool

WINDOWED, PLAIN, SCRATCH = 1, 2, 3


def nothing(*_: Any) -> None:
    """Somebody else's part."""


class Socket:
    """Takes `room` bytes and then nothing until more is given."""

    def __init__(self) -> None:
        self.room = 0
        self.got: dict[int, list[int]] = {WINDOWED: [], PLAIN: [], SCRATCH: []}

    @property
    def writable(self) -> bool:
        return self.room > 0

    def send_entries(self, entries: Sequence[OutboxEntry]) -> None:
        for entry in entries:
            self.room -= entry.nbytes
            self.got[entry.stream] += [int(body) for body in entry.batch.bodies()]


class Pin:
    """What the journal must keep."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence

    def move(self, sequence: int) -> None:
        self.sequence = max(self.sequence, sequence)

    def release(self) -> None:
        self.sequence = 1 << 62


class Scene:
    """One client with three subscriptions: with a window, plain, and of a topic that no journal keeps."""

    def __init__(self, directory: Path) -> None:
        self.socket, self.now, self.offered = Socket(), 1, 0
        self.log: dict[int, Batch] = {}
        self._log_end = 4_096
        self.lost: dict[int, list[Tally]] = {}
        self.streams = {WINDOWED, PLAIN, SCRATCH}
        self._tasks: list[asyncio.Task[None]] = []
        self.pin = Pin(1 << 62)
        self.host = SimpleNamespace(
            now_ns=lambda: self.now, journal=self, spawn=self._spawn, pin=self._pinned,
            judging=SimpleNamespace(judge=nothing, went_live=nothing), in_reader_thread=self._read, turns=Turns(),
        )
        connection: Any = SimpleNamespace(
            host=self.host, name="c", account=None, closed=False, subscriptions={}, bookmark_before=str,
            has_stream=lambda stream: stream in self.streams, lost=self._lose, fail=self._fail,
        )
        self.backlog = connection.backlog = Backlog(connection, self.socket)  # type: ignore[arg-type]
        self.connection, self._directory, self._spools = connection, directory, 0
        self.backlog.state = next_state(self.backlog.state, Event.LOGGED_ON)
        self.backlog.lanes[WINDOWED] = Lane(WINDOWED, Window(AckMode.CLIENT, 4))

    def _pinned(self, sequence: int, _owner: str) -> Pin:
        self.pin = Pin(sequence)
        return self.pin

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    async def _read(self, work: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)  # others have their turn while the disk is read
        return work(*arguments)

    def read_span(self, position: Position, length: int) -> list[tuple[int, Batch]]:
        """The log's batches have their length, and stand one behind another."""
        end = position.offset + length
        return [(at, batch) for at, batch in sorted(self.log.items()) if position.offset <= at < end]

    def _lose(self, stream: int, what: Tally, cause: Cause, rule: str) -> None:
        self.lost.setdefault(stream, []).append(what)
        if cause is Cause.KEPT:
            assert stream != SCRATCH and not what.unjournaled, "what no journal keeps is gone"
        elif cause is Cause.DISCONNECTED:
            assert stream == SCRATCH and what.unjournaled == what.messages, "a bookmark brings it back"

    def _fail(self, error: Exception) -> None:
        raise error

    def publish(self, stream: int, count: int) -> None:
        if stream not in self.streams or self.backlog.state is ClientState.CLOSED:
            return
        first = self.offered + 1
        self.offered += count
        numbers = range(first, first + count)
        batch = Batch.parse(build_one_topic("p", f"t{first % 2}", [b"%d" % number for number in numbers]))
        source = None
        if stream != SCRATCH:
            batch.header = batch.header._replace(first_sequence=first)
            source = Position(1, self._log_end)
            self.log[self._log_end] = batch
            self._log_end += batch.nbytes
        self.backlog.offer(
            OutboxEntry(stream, batch, None, source, batch.nbytes if source else 0, count, batch.nbytes, self.now)
        )
        self.backlog.flush()

    def offline(self) -> None:
        if self.backlog.state is ClientState.LIVE:
            self._spools += 1
            self.backlog.go_offline(Spool(self._directory / f"{self._spools}.spool"))

    def acknowledge(self, number: int) -> None:
        lane = self.backlog.lanes.get(WINDOWED)
        if lane is not None and lane.window is not None and lane.window.unacked:
            upto = min(len(self.socket.got[WINDOWED]), number + len(self.socket.got[WINDOWED]) - lane.window.unacked)
            if upto:
                lane.window.acknowledge(upto, upto)
            self.backlog.acknowledged(lane)

    def unsubscribe(self, stream: int) -> None:
        if stream in self.streams and self.backlog.state is not ClientState.CLOSED:
            self.streams.discard(stream)
            self.backlog.drop_stream(stream)

    def check(self) -> None:
        backlog, waiting = self.backlog, self.backlog.waiting()
        queued = waiting.outbox_messages + waiting.spool_messages
        assert self.offered == backlog.sent_messages + backlog.lost_messages + queued
        assert backlog.lost_messages == sum(tally.messages for tallies in self.lost.values() for tally in tallies)
        for got in self.socket.got.values():
            assert got == sorted(got) and len(got) == len(set(got))
        assert sum(map(len, self.socket.got.values())) == backlog.sent_messages
        if backlog.offline is not None:
            needed = (backlog.offline.in_flight_first, backlog.offline.spool.first_sequence)
            assert all(self.pin.sequence <= first for first in needed if first), "the journal keeps what is referred to"
        held = backlog.spool.held_bytes if backlog.spool is not None else 0
        assert backlog.nbytes >= held >= 0 and bool(backlog.nbytes - held) == bool(waiting.outbox_messages)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
            self.check()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 3), st.integers(1, 6)),
        st.tuples(st.just("publish"), st.integers(1, 3), st.integers(1, 6)),
        st.tuples(st.just("read"), st.integers(1, 2_000), st.just(0)),
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


async def play(scene: Scene, plan: list[tuple[str, int, int]]) -> None:
    backlog = scene.backlog
    for what, one, two in plan:
        scene.now += 1
        live = backlog.state is not ClientState.CLOSED
        if what == "publish":
            scene.publish(one, two)
        elif what == "read" and live:
            scene.socket.room += one
            backlog.on_writable()
        elif what == "ack" and live:
            scene.acknowledge(one)
        elif what == "offline":
            scene.offline()
        elif what == "turn":
            for _ in range(one):
                await asyncio.sleep(0)
        elif what == "discard" and live and one in scene.streams and backlog.offline is None:
            backlog.discard_oldest(one, two, 1 << 40, "limit")
        elif what == "conflate" and live and one in scene.streams and backlog.offline is None:
            target: Any = SimpleNamespace(subscription=SimpleNamespace(stream=one), snapshot_key="topic")
            keep_latest(scene.connection, target, "limit")
        elif what == "pause" and live and one in scene.streams and backlog.offline is None:
            backlog.lane(one).paused = bool(two)
            backlog.go_on()
        elif what == "unsubscribe":
            scene.unsubscribe(one)
        elif what == "close" and len(plan) % 3 == 0:
            backlog.close()
        scene.check()
    await scene.settle()


async def drained(scene: Scene) -> None:
    """The client reads and acknowledges everything: nothing may stay behind."""
    backlog = scene.backlog
    for lane in backlog.lanes.values():
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


LANES_APART = [("read", 1, 0), ("publish", 1, 1), ("publish", 2, 1), ("publish", 1, 1), ("conflate", 2, 0), ("offline", 0, 0)]
"""The lane that comes first doesn't hold the oldest record."""


@settings(max_examples=150, deadline=None)
@example(plan=LANES_APART, stalled_after_s=1.0)
@given(steps, st.sampled_from((1.0, 0.0)))
def test_every_message_is_sent_given_up_or_waiting(plan: list[tuple[str, int, int]], stalled_after_s: float) -> None:
    """With no patience a drain gives back what isn't taken at once."""

    async def run() -> None:
        with TemporaryDirectory() as directory:
            scene = Scene(Path(directory))
            await play(scene, plan)
            if scene.backlog.state is not ClientState.CLOSED:
                await drained(scene)
                assert scene.backlog.state is ClientState.LIVE
            scene.backlog.close()
            scene.check()
            assert scene.backlog.waiting().outbox_messages == 0

    with patch.object(offline_module, "STALLED_AFTER_S", stalled_after_s):
        asyncio.run(run())
