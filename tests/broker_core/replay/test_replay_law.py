"""The law of replay over a real host and journal, against a list in memory:

replay(b) then live = everything after b, once, in order, for any interleaving of publishes, rolls,
compressions, archives, stops of the socket, pauses and rate changes.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch, build_batch
from broker_core.clock import SystemClock
from broker_core.config import default_policy
from broker_core.connections.connection import Connection
from broker_core.delivery import backlog
from broker_core.delivery import scheduling as turns
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.sink import UNKNOWN
from broker_core.engine.engine import Engine
from broker_core.journal.journal import Journal, JournalOptions
from broker_core.journal.segment_copies import compress_segment, copy_segment
from broker_core.protocols import commands
from broker_core.protocols.replies import Ack, GapNotice, Reply
from broker_core.replay import read_ahead
from broker_core.replay import replay as replayer

HUGE = 1 << 40
STEERING = ("pause", "resume", "rate")
RATES = (None, "5000", "200KB", "20000", "3X", None, "1MB")
"""Rates by number; slow ones are removed at the end, so that a test ends."""


class RecordingSocket:
    """A sink that records its deliveries."""

    protocol, remote = "tcp", "test"

    def __init__(self) -> None:
        self.is_writable = True
        self.appetite = HUGE
        self.got: list[int | str] = []
        self.written_bytes = 0

    def send_entries(self, entries: Sequence[OutboxEntry]) -> None:
        for entry in entries:
            self.written_bytes += entry.nbytes
            self.got += entry.batch.sequences().tolist()
        self.appetite -= len(entries)
        self.is_writable = self.appetite > 0

    def send_reply(self, reply: Reply) -> bool:
        assert not isinstance(reply, GapNotice), reply
        if isinstance(reply, Ack) and reply.of == "subscribe" and reply.ack == "completed":
            self.got.append("ended" if reply.ended else "completed")
        return True

    def on_logged_on(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self, code: str, message: str) -> None:
        raise AssertionError(f"closed with {code}: {message}")

    @property
    def is_flushed(self) -> bool:
        return self.is_writable

    window_step_bytes, is_network_limited, receive_window = 0, False, UNKNOWN

    def acked_bytes(self) -> int:
        return self.written_bytes


class ReplayModel:
    """A replay host, a publisher, a subscriber, and a model: every record's topic by sequence."""

    def __init__(self, home: Path) -> None:
        self.home = home
        options = JournalOptions(segment_size=16 * 1024, preallocated=1)
        journal = Journal.open(home / "journal", "law-1", home / "archive", options)
        self.engine = Engine(journal, default_policy("law-1"), home / "spool", HUGE, None, SystemClock())
        self.socket, self.publisher = RecordingSocket(), self._client("publisher", RecordingSocket())
        self.subscriber = self._client("subscriber", self.socket)
        self.model: dict[int, str] = {}
        self.begin: int | None = None
        self.end: int | None = None

    def _client(self, name: str, socket: RecordingSocket) -> Connection:
        connection = self.engine.add_connection("tcp", socket)
        connection.execute_command(commands.Logon(name=name))
        return connection

    async def do(self, operation: str, number: int) -> None:
        if operation == "publish":
            topics = [("t.a", "t.b", "u.a")[(number + row) % 3] for row in range(number)]
            batch = Batch.parse(build_batch("publisher", topics, [b"x" * number] * number))
            self.engine.dispatch.publish(self.publisher, batch, ())
        elif operation == "turns":
            for _ in range(number):
                await asyncio.sleep(0)
        elif operation == "rest":
            await asyncio.sleep(number / 2_000)
        elif operation == "block":
            self.socket.appetite = number // 4
            self.socket.is_writable = self.socket.appetite > 0
        elif operation == "unblock":
            self.unblock()
        elif operation == "subscribe":
            self.subscribe(number)
        elif operation in STEERING:
            self.steer(operation, number)
        else:
            await asyncio.to_thread(self.maintain, operation, number)

    def unblock(self) -> None:
        self.socket.is_writable, self.socket.appetite = True, HUGE
        self.subscriber.on_writable()

    def subscribe(self, number: int) -> None:
        if self.begin is not None:
            return
        newest = self.engine.frontier.durable
        self.begin = newest * number // 20
        bookmark = f"law-1|{self.begin}|"
        if number % 3 == 0:
            self.end = self.begin + (newest - self.begin) // 2
            bookmark = f"({bookmark}:law-1|{self.end}|]"
        self.subscriber.execute_command(commands.Subscribe(id="s", topic="t.*", bookmark=bookmark))

    def steer(self, operation: str, number: int) -> None:
        """Pause, resume or pace the subscription, if it is there: a range may be over."""
        if "s" not in self.subscriber.subscriptions:
            return
        rate = RATES[number % len(RATES)]
        command: dict[str, commands.Command] = {
            "pause": commands.PauseSubscriptions(ids=["s"]),
            "resume": commands.ResumeSubscriptions(ids=["s"]),
            "rate": commands.SetRate(ids=["s"], rate=rate),
        }
        self.subscriber.execute_command(command[operation])

    def maintain(self, operation: str, number: int) -> None:
        journal = self.engine.journal
        journal.finish_sealed()
        able = [s for s in journal.segments()[:-1] if s.state == "sealed" and not s.compressed]
        if not able:
            return
        segment = able[number % len(able)]
        prepared = self.home / "archive" / "prepared"
        if operation == "compress":
            compress_segment(segment.path, self.home / "journal" / "prepared.gz")
            journal.compress_swap(segment.name, self.home / "journal" / "prepared.gz")
        else:
            copy_segment(segment.path, prepared)
            journal.archive_swap(segment.name, prepared)

    async def finish(self) -> None:
        """Let all work complete."""
        self.unblock()
        await self.engine.dispatch.barrier()
        if self.begin is None:
            self.subscribe(7)
        self.steer("rate", 0)
        self.steer("resume", 0)
        async with asyncio.timeout(10):
            while any(target.cursor.is_behind for target in self.subscriber.subscriptions.values()):
                await asyncio.sleep(0.001)

    def expected(self) -> list[int]:
        """The records after the bookmark, by reading the journal from end to end without a replay."""
        journal, sequence, found = self.engine.journal, 1, list[int]()
        while batches := journal.read(sequence, 1 << 20, journal.next_sequence - 1):
            for batch in batches:
                found += [record.sequence for record in batch.records() if record.topic.startswith("t.")]
            sequence = batches[-1].last_sequence + 1
        assert self.begin is not None
        last = self.end if self.end is not None else HUGE
        return [sequence for sequence in found if self.begin < sequence <= last]


operations = st.tuples(
    st.sampled_from(
        ["publish"] * 4
        + [
            "turns",
            "rest",
            "rest",
            "block",
            "block",
            "unblock",
            "subscribe",
            "compress",
            "archive",
            *STEERING,
        ]
    ),
    st.integers(1, 20),
)


async def live_out(script: list[tuple[str, int]], home: Path) -> None:
    world = ReplayModel(home)
    for operation, number in script:
        await world.do(operation, number)
    await world.finish()
    got = [what for what in world.socket.got if isinstance(what, int)]
    assert got == world.expected()
    words = [what for what in world.socket.got if isinstance(what, str)]
    assert words == ["completed" if world.end is None else "ended"]
    if world.end is not None:
        assert world.socket.got[-1] == "ended"
        assert world.subscriber.subscriptions == {}
    world.socket.close = lambda code, message: None  # type: ignore[method-assign]
    world.publisher.sink.close = lambda code, message: None  # type: ignore[method-assign]
    await world.engine.close()


def run(script: list[tuple[str, int]]) -> None:
    home = Path(tempfile.mkdtemp(prefix="sluice-law-"))
    with pytest.MonkeyPatch.context() as patched:
        # Small chunks and short patience, so that a few records make many turns and stalls.
        patched.setattr(replayer, "PULL_BYTES", 1_024)
        patched.setattr(turns, "FIRST_CHUNK_BYTES", 1_024)
        patched.setattr(read_ahead, "UNCUT_AFTER_BYTES", 4 * 1_024)
        patched.setattr(turns, "MAX_CHUNK_BYTES", 8 * 1_024)
        patched.setattr(turns, "READ_BYTES_PER_CHUNK_BYTE", 1)
        # Shorter than the rests of a script, so that chunks are read ahead in some, and given up when
        # messages come.
        patched.setattr(turns, "LIVE_TRAFFIC_TIMEOUT_S", 0.002)
        patched.setattr(replayer, "STALLED_AFTER_S", 0.001)
        patched.setattr(backlog, "PULL_BYTES", 1_024)
        try:
            asyncio.run(live_out(script, home))
        finally:
            shutil.rmtree(home)


@given(st.lists(st.integers(1, 20), max_size=20), st.lists(operations, min_size=1, max_size=30))
@settings(max_examples=150, deadline=None)
def test_replay_then_live_is_everything_after_the_bookmark_once_in_order(
    before: list[int], script: list[tuple[str, int]]
) -> None:
    run([("publish", number) for number in before] + [("rest", 5)] + script)


def test_the_law_holds_for_a_script_with_everything_in_it() -> None:
    script: list[tuple[str, int]] = [("publish", 20)] * 20 + [
        ("rest", 20),
        ("compress", 1),
        ("block", 16),
        ("subscribe", 1),
    ]
    script += [("rest", 20)]
    run(
        script
        + [("publish", 7), ("rest", 5), ("archive", 1), ("unblock", 1), ("turns", 9), ("publish", 3)] * 5
    )
