"""Property tests of a shared subscription over a real broker engine and journal, for any consumers and
crashes.

No record is lost. No consumer gets a record that another holds, or that was acknowledged (after a crash: if
that was saved). Returned records go out before new ones. Every consumer's account balances.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch, build_batch
from broker_core.clock import SystemClock
from broker_core.config import default_policy
from broker_core.connections.connection import Connection
from broker_core.connections.subscription_setup import reject_message
from broker_core.delivery.account import list_account_volumes, sum_volumes
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.sink import UNKNOWN
from broker_core.engine.engine import Engine
from broker_core.journal.journal import Journal, JournalOptions
from broker_core.protocols import commands
from broker_core.protocols.replies import ErrorReply, Reply
from broker_core.replay.positions.file import SHARED_OWNER
from tests.support.crash_copy import copy_live_directory

HUGE = 1 << 40
KEY = SHARED_OWNER, "jobs"


class ConsumerSocket:
    """A consumer's socket: the messages delivered and not yet acknowledged, by number."""

    protocol, remote, text_mode = "tcp", "test", False
    peer_names: frozenset[str] = frozenset()
    is_flushed, window_step_bytes, is_network_limited, receive_window = True, 0, False, UNKNOWN

    def __init__(self, world: SharingModel) -> None:
        self.world = world
        self.is_writable = True
        self.written_bytes = self.numbers = 0
        self.holds: dict[int, int] = {}

    def send_entries(self, entries: Sequence[OutboxEntry]) -> None:
        for entry in entries:
            self.written_bytes += entry.nbytes
            for sequence in entry.batch.sequences().tolist():
                self.numbers += 1
                self.world.check_assignable(sequence)
                self.holds[self.numbers] = sequence

    def send_reply(self, reply: Reply) -> bool:
        assert not isinstance(reply, ErrorReply), reply
        return True

    def acked_bytes(self) -> int:
        return self.written_bytes

    def on_logged_on(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self, code: str, message: str) -> None:
        assert code == "shutting_down", (code, message)


class SharingModel:
    """A broker, its consumers, and a model of their shared subscription."""

    def __init__(self, home: Path, max_deliveries: int) -> None:
        self.home, self.max_deliveries = home, max_deliveries
        self.published: set[int] = set()
        """Sequences that match the shared subscription."""
        self.acked: set[int] = set()
        self.saved: set[int] = set()
        """Sequences acknowledged at the last save."""
        self.consumers: list[tuple[Connection, ConsumerSocket]] = []
        self.lives = 0
        self.start()

    def start(self) -> None:
        self.lives += 1
        self.position = 0
        self.names = 0
        options = JournalOptions(segment_size=64 * 1024, preallocated=1)
        place = self.home / str(self.lives)
        journal = Journal.open(place / "journal", "law-1", place / "archive", options)
        self.engine = Engine(journal, default_policy("law-1"), place / "spool", HUGE, None, SystemClock())
        self.publisher = self.client()[0]

    def client(self) -> tuple[Connection, ConsumerSocket]:
        self.names += 1
        socket = ConsumerSocket(self)
        connection = self.engine.add_connection("tcp", socket)
        connection.execute_command(commands.Logon(name=f"c{self.names}"))
        return connection, socket

    def check_assignable(self, sequence: int) -> None:
        assert sequence not in self.acked, "nobody is given what another has acknowledged"
        holders = [socket for _, socket in self.consumers if sequence in socket.holds.values()]
        assert not holders, "nobody is given what another holds"

    async def do(self, operation: str, number: int) -> None:
        consumer = self.consumers[number % len(self.consumers)] if self.consumers else None
        if operation == "publish":
            topics = [("queue.jobs", "other", "queue.jobs")[(number + row) % 3] for row in range(number)]
            batch = Batch.parse(build_batch("c1", topics, [b"x" * number] * number))
            before = self.engine.frontier.durable
            self.engine.dispatch.publish(self.publisher, batch, ())
            await self.engine.dispatch.barrier()
            self.published |= {before + 1 + row for row, topic in enumerate(topics) if topic != "other"}
        elif operation == "turns":
            await asyncio.sleep(number / 4_000)
        elif operation == "join":
            self.join(1 + number % 7)
            await asyncio.sleep(0)
        elif operation == "save":
            await self.save()
        elif operation == "crash":
            await self.crash()
        elif operation == "leave" and consumer is not None:
            await self.disconnect(*consumer)
        elif consumer is not None:
            self.perform(operation, *consumer, number)
        await self.engine.durables.record_positions()
        self.check_position()

    def check_position(self) -> None:
        """Check that the stored position never moves back, except by a crash, which loses unsynced
        changes.
        """
        position = max((one.position for one in self.engine.position_store.durables.values()), default=0)
        assert position >= self.position, "a kept place moved back"
        self.position = position

    async def disconnect(self, connection: Connection, socket: ConsumerSocket) -> None:
        self.consumers.remove((connection, socket))
        connection.on_closed()
        async with asyncio.timeout(60):
            while not connection.is_closed:  # others may stand in the line
                await asyncio.sleep(0)
        account = connection.account
        assert account.matched == sum_volumes(what for _, what in list_account_volumes(account))
        assert account.waiting.messages == account.in_flight.messages == 0

    def perform(self, operation: str, connection: Connection, socket: ConsumerSocket, number: int) -> None:
        if operation == "block":
            socket.is_writable = not socket.is_writable
            if socket.is_writable:
                connection.on_writable()
        elif socket.holds:
            chosen = list(socket.holds)[number % len(socket.holds)]
            sequence = socket.holds.pop(chosen)
            if operation == "ack":
                self.acked.add(sequence)
                connection.execute_command(commands.Acknowledge(id="s", numbers=[(chosen, chosen)]))
            else:
                reject_message(connection, self.engine.services, connection.subscriptions["s"], chosen)
            account = connection.account
            assert account.matched == sum_volumes(what for _, what in list_account_volumes(account))
            assert min(account.waiting.messages, account.in_flight.messages) >= 0

    def join(self, prefetch: int) -> None:
        connection, socket = self.client()
        self.consumers.append((connection, socket))
        connection.execute_command(
            commands.Subscribe(
                id="s",
                topic="queue.jobs",
                durable="jobs",
                shared=True,
                bookmark="0",
                ack="client-individual",
                prefetch=prefetch,
                max_deliveries=self.max_deliveries,
            )
        )

    async def save(self) -> None:
        saved = set(self.acked)
        await self.engine.durables.record_positions()
        await self.engine.position_store.save()
        self.saved = saved

    async def crash(self) -> None:
        """Restart from a copy of the files on disk."""
        await self.engine.dispatch.barrier()
        copy_live_directory(self.home / str(self.lives), self.home / str(self.lives + 1))
        self.consumers.clear()
        await self.engine.close()
        self.acked = set(self.saved)
        self.start()

    async def drain(self) -> None:
        """Check that consumers that acknowledge everything receive the whole backlog."""
        for connection, socket in self.consumers:
            socket.is_writable = True
            connection.on_writable()
        self.join(50)
        async with asyncio.timeout(60):
            # A dead letter is in the log a moment before it is known that what it is of is done.
            while (owed := self.published - self.acked - self.dead_letters()) or any(
                one.unacknowledged for one in self.engine.durables.list_entries()
            ):
                assert owed >= {one for _, s in self.consumers for one in s.holds.values()}
                for consumer in self.consumers:
                    while consumer[1].holds:
                        self.perform("ack", *consumer, 0)
                await asyncio.sleep(0.001)

    def dead_letters(self) -> set[int]:
        """Return the sequences that the dead letters name."""
        journal, found, at = self.engine.journal, set[int](), 1
        while self.max_deliveries and (read := journal.read(at, 1 << 20, self.engine.frontier.durable)):
            for batch in read:
                for record in batch.records():
                    if record.topic == "queue.dead.jobs":
                        assert b"x-sluice-dead-letter-from:queue.jobs\n" in record.headers
                        found.add(int(record.headers.rsplit(b"|", 2)[-2]))
            at = read[-1].last_sequence + 1
        return found


OPERATIONS = st.tuples(
    st.sampled_from(
        [
            "publish",
            "publish",
            "join",
            "ack",
            "ack",
            "ack",
            "ack",
            "nack",
            "leave",
            "block",
            "turns",
            "turns",
            "turns",
            "save",
            "crash",
        ]
    ),
    st.integers(1, 20),
)


async def live_out(script: list[tuple[str, int]], home: Path, max_deliveries: int) -> None:
    world = SharingModel(home, max_deliveries)
    for operation, number in script:
        await world.do(operation, number)
    await world.drain()
    assert world.published <= world.acked | world.dead_letters()
    await world.save()
    kept = world.engine.position_store.durables[KEY]
    assert kept.sharing is not None and kept.sharing.done == [] and kept.sharing.tries == {}
    assert kept.position == world.engine.frontier.durable + 1, "it holds nothing of the log any more"
    await world.engine.close()


def run(script: list[tuple[str, int]], max_deliveries: int) -> None:
    home = Path(tempfile.mkdtemp(prefix="sluice-sharing-"))
    try:
        asyncio.run(live_out(script, home, max_deliveries))
    finally:
        shutil.rmtree(home)


@given(st.lists(OPERATIONS, min_size=1, max_size=40), st.sampled_from([0, 0, 2]))
@settings(max_examples=25, deadline=None)
def test_nothing_is_lost_and_nobody_gets_what_another_has(
    script: list[tuple[str, int]], max_deliveries: int
) -> None:
    run([("publish", 9), ("join", 3), ("turns", 9), *script], max_deliveries)


def test_the_laws_hold_for_a_script_with_everything_in_it() -> None:
    script = [
        ("publish", 20),
        ("join", 3),
        ("join", 4),
        ("turns", 20),
        ("ack", 2),
        ("nack", 1),
        ("publish", 20),
    ] * 4
    run([*script, ("leave", 1), ("block", 2), ("save", 1), ("ack", 1), ("crash", 1), *script], 3)
