"""Property test of delivery accounts over a real broker engine and journal, against a counting model.

    matched = acknowledged + in flight + waiting + gone

This holds for every subscription of a client with one of each type, at every step of any interleaving of
publishes, reads, acks, offlining, draining, pauses, rates, returns to the log, conflation, discards, cancels,
disconnects and reconnects. The account also equals the queues, the bytes on the socket and the ledger's rows.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch, build_batch
from broker_core.clock import SystemClock
from broker_core.config import default_policy
from broker_core.config.instance import JournaledTopic
from broker_core.connections.connection import Connection
from broker_core.delivery import backlog
from broker_core.delivery import scheduling as turns
from broker_core.delivery import spooled_backlog as spooled_backlog_module
from broker_core.delivery.account import (
    NOTHING,
    DeliveryAccount,
    DiscardCause,
    MessageVolume,
    list_account_volumes,
    sum_volumes,
)
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.keep_latest import keep_latest
from broker_core.delivery.lifecycle import ClientState
from broker_core.delivery.sink import UNKNOWN
from broker_core.engine.enforcement import offline_client, pause_subscription, resume_subscription
from broker_core.engine.engine import Engine
from broker_core.journal.journal import Journal, JournalOptions
from broker_core.protocols import commands
from broker_core.protocols.replies import GapNotice, Reply
from broker_core.replay import replay as replayer
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.subscriptions.keys import parse_key

HUGE = 1 << 40
KINDS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"topic": "t.*"},
    "scratch": {"topic": "scratch.*"},
    "mixed": {"topic": ">", "ack": "client", "prefetch": 7},
    "log": {"topic": "t.*"},
    "early": {"topic": "t.*", "durability": "live"},
    "acking": {"topic": "t.*", "ack": "client", "prefetch": 5},
    "single": {"topic": "t.a", "ack": "client-individual", "prefetch": 4},
    "paced": {"topic": "t.a", "rate": "1MB"},
    "thin": {"topic": "t.*", "conflation": "2ms", "conflation_key": "topic"},
    "state": {"topic": "t.*", "snapshot_key": "topic"},
    "range": {"topic": "t.*", "bookmark": "[0:0|1|)"},
    "durable": {"topic": "t.b", "durable": "d", "prefetch": 6},
}
"""One subscription of each kind."""
FROM_LOG: Final = ("log", "early", "acking", "single", "paced", "thin")
"""They begin with a bookmark."""
EXACT: Final = ("plain", "log", "early", "acking", "single", "paced", "mixed", "scratch")
"""They get each record once, in order."""
NAMES: Final = tuple(KINDS)


def ledger_volume(account: DeliveryAccount) -> int:
    """Number of discarded messages that have a row in the ledger: all but those conflated on request."""
    asked = account.discarded.get(DiscardCause.CONFLATED_ON_REQUEST, NOTHING)
    return account.discarded_volume.minus(asked).messages


class SimulatedSocket:
    """A socket that accepts `appetite` deliveries, then none.

    The script decides what its peer's kernel has received.
    """

    protocol, remote = "tcp", "test"
    window_step_bytes, is_network_limited, receive_window = 0, False, UNKNOWN

    def __init__(self) -> None:
        self.is_writable = True
        self.appetite = HUGE
        self.written_bytes = self.taken = 0
        self.ids: dict[int, str] = {}
        self.got: dict[str, list[tuple[int, bytes]]] = {}
        self.gaps = 0
        self.closed = ""
        self.replies: list[Reply] = []

    def send_entries(self, entries: Sequence[OutboxEntry]) -> None:
        for entry in entries:
            self.written_bytes += entry.nbytes
            numbers = entry.batch.sequences().tolist() if entry.batch.first_sequence else [0] * entry.count
            self.got.setdefault(str(entry.stream), []).extend(zip(numbers, entry.batch.bodies(), strict=True))
        self.appetite -= len(entries)
        self.is_writable = self.appetite > 0

    def send_reply(self, reply: Reply) -> bool:
        self.replies.append(reply)
        self.gaps += isinstance(reply, GapNotice)
        return True

    def on_logged_on(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self, code: str, message: str) -> None:
        self.closed = code

    @property
    def is_flushed(self) -> bool:
        return self.is_writable

    def acked_bytes(self) -> int:
        return self.taken


class AccountModel:
    """A broker engine, a publisher, and a client with one subscription of each requested type."""

    def __init__(self, home: Path) -> None:
        options = JournalOptions(segment_size=64 * 1024, preallocated=1)
        journal = Journal.open(home / "journal", "law-1", home / "archive", options)
        policy = default_policy("law-1")
        policy = replace(policy, instance=replace(policy.instance, journaled_topics=(JournaledTopic("t.>"),)))
        self.engine = Engine(journal, policy, home / "spool", HUGE, None, SystemClock())
        self.publisher = self._client("publisher", SimulatedSocket())
        self.socket = SimulatedSocket()
        self.subscriber = self._client("subscriber", self.socket)
        self.number = 0
        self.published: list[tuple[str, bytes]] = []
        self.scratch = 0
        self.holes: set[int] = set()
        """Streams of which something was given up, or conflated."""
        self.seen: dict[int, ClientSubscription] = {}
        self.began: dict[int, int] = {}
        """Sequence after which each began; of one without a bookmark, how many were published."""
        self.ended: dict[int, int] = {}

    def _client(self, name: str, socket: SimulatedSocket) -> Connection:
        connection = self.engine.add_connection("tcp", socket)
        connection.execute_command(commands.Logon(name=name))
        return connection

    def target(self, number: int) -> ClientSubscription | None:
        """Return a current subscription, chosen by number."""
        there = list(self.subscriber.subscriptions.values())
        return there[number % len(there)] if there else None

    async def do(self, operation: str, number: int) -> None:
        act = getattr(self, f"do_{operation}")
        await act(number) if asyncio.iscoroutinefunction(act) else act(number)

    def do_publish(self, number: int) -> None:
        rows = range(self.number, self.number + number)
        self.number += number
        topics = [("t.a", "t.b", "scratch.a", "t.a")[(row + number) % 4] for row in rows]
        bodies = [b"%d" % row + b"x" * (row % 7) for row in rows]
        self.published += zip(topics, bodies, strict=True)
        self.engine.dispatch.publish(
            self.publisher, Batch.parse(build_batch("publisher", topics, bodies)), ()
        )

    async def do_turns(self, number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)

    async def do_rest(self, number: int) -> None:
        await asyncio.sleep(number / 4_000)

    def do_block(self, number: int) -> None:
        self.socket.appetite = number // 4
        self.socket.is_writable = self.socket.appetite > 0

    def do_unblock(self, number: int) -> None:
        self.socket.is_writable, self.socket.appetite = True, HUGE
        self.subscriber.on_writable()

    def do_took(self, number: int) -> None:
        left = self.socket.written_bytes - self.socket.taken
        self.socket.taken += left * number // 20
        self.subscriber.backlog.update_progress()

    async def do_subscribe(self, number: int) -> None:
        name = NAMES[number % len(NAMES)]
        if name in self.subscriber.subscriptions:
            return
        asked = dict(KINDS[name])
        if name in FROM_LOG:
            asked["bookmark"] = ("0", "0|1|", f"law-1|{self.engine.frontier.durable // 2}|")[number % 3]
        if name not in FROM_LOG and name not in ("state", "durable", "range"):
            await self.engine.dispatch.barrier()
        self.subscriber.execute_command(commands.Subscribe(id=name, **asked))
        for _ in range(100):
            if name in self.subscriber.subscriptions:
                break
            await asyncio.sleep(0.0005)
        target = self.subscriber.subscriptions.get(name)
        if target is None:
            assert name == "range", "a short one may be over"
            return
        self.seen[target.stream] = target
        self.began[target.stream] = (
            (target.cursor.span.first - 1) if target.cursor.span is not None else self.number
        )

    def do_ack(self, number: int) -> None:
        target = self.target(number)
        if target is None or not self.subscriber.backlog.has_ack_window(target.stream):
            return
        got = len(self.socket.got.get(str(target.stream), []))
        window = self.subscriber.backlog.queues[target.stream].window
        assert window is not None
        first = got - window.unacked_messages + 1
        if window.unacked_messages and got:
            last = min(got, max(first, 1) + number // 5)
            self.subscriber.execute_command(
                commands.Acknowledge(id=target.id, numbers=[(max(last - 1, 1), last)])
            )

    def do_offline(self, number: int) -> None:
        if self.subscriber.backlog.state is ClientState.LIVE:
            offline_client(self.engine.enforcer, self.subscriber)

    def do_hold(self, number: int) -> None:
        if (target := self.target(number)) is not None:
            pause_subscription(self.subscriber, target)

    def do_let_go(self, number: int) -> None:
        if (target := self.target(number)) is not None:
            resume_subscription(self.subscriber, target)

    def do_pause(self, number: int) -> None:
        self._steer(number, commands.PauseSubscriptions)

    def do_resume(self, number: int) -> None:
        self._steer(number, commands.ResumeSubscriptions)

    def do_rate(self, number: int) -> None:
        target = self.target(number)
        if target is not None and target.is_bookmark_subscription and target.durability != "live":
            self.subscriber.execute_command(
                commands.SetRate(ids=[target.id], rate="1GB" if number % 2 else None)
            )

    def _steer(self, number: int, command: Any) -> None:
        target = self.target(number)
        if target is not None and target.is_bookmark_subscription and target.durability != "live":
            self.subscriber.execute_command(command(ids=[target.id]))

    def do_fall_back(self, number: int) -> None:
        if (target := self.target(number)) is not None:
            self.engine.control.fall_back(target)

    def do_discard(self, number: int) -> None:
        if (target := self.target(number)) is not None:
            before = self.engine.ledger.messages
            lost = self.subscriber.backlog.discard_oldest(target.stream, number % 5 + 1, 0, "limit")
            assert self.engine.ledger.messages - before == lost
            if lost:
                self.holes.add(target.stream)
            self.subscriber.mark_changed()

    def do_conflate(self, number: int) -> None:
        if (target := self.target(number)) is not None:
            self.holes.add(target.stream)
            keep_latest(
                self.subscriber.backlog,
                self.engine.facilities,
                target.stream,
                parse_key("topic").key_of_record(None),
                "limit",
            )

    def do_cancel(self, number: int) -> None:
        if (target := self.target(number)) is not None:
            self._close_failed(target, number)

    def _close_failed(self, target: ClientSubscription, number: int) -> None:
        account, stream = target.account, target.stream
        self.subscriber.backlog.update_progress()
        ending = self.subscriber.end(
            target, (DiscardCause.CANCELLED, DiscardCause.UNSUBSCRIBED)[number % 2], "rule"
        )
        self.ended[stream] = self.number
        assert not account.outstanding.messages
        got = [sequence for sequence, _ in self.socket.got.get(str(stream), [])]
        if (
            target.is_bookmark_subscription
            and stream not in self.holes
            and target.conflating is None
            and target.id != "state"
        ):
            # Everything of it that isn't acknowledged comes after the bookmark.
            following = ending.first or self.engine.frontier.durable + 1
            wanted = self.matching_sequences(target)
            before = [sequence for sequence in wanted if sequence < following]
            assert set(before) <= set(got), (target.id, target.cursor.state, following)

    def matching_sequences(self, target: ClientSubscription) -> list[int]:
        """Return the sequences of the log that match a subscription."""
        journal, sequence, found = self.engine.journal, self.began[target.stream] + 1, list[int]()
        while batches := journal.read(sequence, 1 << 20, journal.next_sequence - 1):
            for batch in batches:
                found += [
                    record.sequence
                    for record in batch.records()
                    if record.sequence >= sequence and target.subscription.pattern.matches(record.topic)
                ]
            sequence = batches[-1].last_sequence + 1
        return found

    def do_look(self, number: int) -> None:
        self.engine.policy_loop.judge_all()

    # What must be so.

    def check(self) -> None:
        connection = self.subscriber
        ended = connection.backlog.ended_account
        discarded = ledger_volume(ended)
        for target in connection.subscriptions.values():
            account, name = target.account, (target.id, target.cursor.state)
            discarded += ledger_volume(account)
            assert account.matched == sum_volumes(amount for _, amount in list_account_volumes(account)), name
            for word, amount in (*list_account_volumes(account), ("in_log", account.in_log)):
                assert amount.messages >= 0 and amount.nbytes >= 0, (name, word, amount)
            got = self.socket.got.get(str(target.stream), [])
            assert account.delivered == MessageVolume(len(got), sum(len(body) for _, body in got)), name
            assert account.waiting.messages - account.in_log.messages == self.queued(target), name
        assert self.engine.ledger.messages == discarded
        backlog, mine = connection.backlog, connection.subscriptions.values()
        assert backlog.outstanding == sum_volumes(map(backlog.get_outstanding, mine))
        for one in mine:
            read, account = backlog.has_ack_window(one.stream) and not one.is_paused, one.account
            if read or not one.can_fall_back:
                assert backlog.get_outstanding(one) == (
                    account.outstanding if read else account.outstanding.minus(account.in_log)
                )
        assert all(amount.messages >= 0 and amount.nbytes >= 0 for _, amount in list_account_volumes(ended))

    def queued(self, target: ClientSubscription) -> int:
        """Messages that really lie somewhere in memory or in the spool."""
        backlog, stream = self.subscriber.backlog, target.stream
        found = sum(entry.count for entry in backlog.outbox if entry.stream == stream)
        if stream in backlog.queues:
            found += backlog.queues[stream].messages
        if backlog.offline is not None and stream in (tallies := backlog.offline.tallies()):
            found += tallies[stream].messages
        if target.conflating is not None:
            found += len(target.conflating._conflator) + sum(
                piece.batch.count for piece in target.conflating._pending_slices
            )
            waiting: Any = getattr(target.serving_replay, "_waiting", ())
            found += sum(piece.batch.count - piece.start for piece in waiting)
        return found

    async def finish(self) -> None:
        """Let the client read and acknowledge everything until no work is left."""
        connection = self.subscriber
        await self.engine.dispatch.barrier()
        self.do_unblock(0)
        for target in connection.subscriptions.values():
            resume_subscription(connection, target)
            if target.is_bookmark_subscription and target.durability != "live":
                connection.execute_command(commands.SetRate(ids=[target.id], rate=None))
                connection.execute_command(commands.ResumeSubscriptions(ids=[target.id]))
        try:
            async with asyncio.timeout(8):
                while not self.is_idle():
                    self.socket.taken = self.socket.written_bytes
                    for target in connection.subscriptions.values():
                        lane = connection.backlog.queues.get(target.stream)
                        got = len(self.socket.got.get(str(target.stream), []))
                        if (
                            lane is not None
                            and lane.window is not None
                            and got
                            and lane.window.unacked_messages
                        ):
                            connection.execute_command(commands.Acknowledge(id=target.id, numbers=[(1, got)]))
                    await asyncio.sleep(0.001)
                    self.check()
        except TimeoutError:
            states = [
                (t.id, t.cursor.state, t.account.waiting, t.account.in_flight, t.account.in_log)
                for t in connection.subscriptions.values()
            ]
            raise AssertionError(f"{connection.backlog.state} {states}") from None
        self.check()

    def is_idle(self) -> bool:
        targets = self.subscriber.subscriptions.values()
        self.subscriber.backlog.update_progress()
        return self.subscriber.backlog.offline is None and all(
            not target.cursor.is_behind and not target.account.outstanding.messages for target in targets
        )

    def check_content(self) -> None:
        """Check that delivered records equal published ones."""
        for target in self.subscriber.subscriptions.values():
            got = self.socket.got.get(str(target.stream), [])
            sequences = [sequence for sequence, _ in got if sequence]
            assert not target.account.discarded.get(DiscardCause.REMOVED), target.id
            if target.id in EXACT:
                assert sequences == sorted(set(sequences)), target.id
            if target.id not in EXACT or target.id in ("scratch", "mixed", "plain"):
                continue
            lost = ledger_volume(target.account)
            wanted = self.matching_sequences(target)
            if target.stream not in self.holes:
                assert not lost and sequences == wanted, target.id
            else:
                assert set(sequences) <= set(wanted) and len(sequences) + lost == len(wanted), (
                    target.id,
                    lost,
                )
        for target in self.subscriber.subscriptions.values():
            if target.id in ("scratch", "mixed", "plain"):
                after = self.published[self.began[target.stream] :]
                wanted_bodies = [body for topic, body in after if target.subscription.pattern.matches(topic)]
                assert target.account.matched.messages == len(wanted_bodies), target.id
                assert target.account.matched.nbytes == sum(map(len, wanted_bodies)), target.id
                got = [body for _, body in self.socket.got.get(str(target.stream), [])]
                assert len(got) + ledger_volume(target.account) == len(wanted_bodies), target.id
                if target.stream not in self.holes:
                    assert sorted(got) == sorted(wanted_bodies), target.id

    async def close(self) -> None:
        connection = self.subscriber
        if not connection.is_closed:
            connection.close("bye", "")
        left = connection.backlog.account
        assert not left.outstanding.messages and left.matched == sum_volumes(
            amount for _, amount in list_account_volumes(left)
        )
        assert self.engine.ledger.messages == ledger_volume(left)
        await self.engine.close()


OPERATIONS: Final = (
    *["publish"] * 6,
    "turns",
    "turns",
    "rest",
    "rest",
    "block",
    "block",
    "unblock",
    "took",
    "subscribe",
    "subscribe",
    "subscribe",
    "ack",
    "ack",
    "offline",
    "hold",
    "let_go",
    "pause",
    "resume",
    "rate",
    "fall_back",
    "discard",
    "conflate",
    "cancel",
    "look",
)
operations = st.tuples(st.sampled_from(OPERATIONS), st.integers(1, 20))


async def live_out(script: list[tuple[str, int]], home: Path) -> None:
    world = AccountModel(home)
    try:
        for operation, number in script:
            await world.do(operation, number)
            world.check()
        await world.finish()
        world.check_content()
    finally:
        await world.close()


def run(script: list[tuple[str, int]]) -> None:
    home = Path(tempfile.mkdtemp(prefix="sluice-law-"))
    with pytest.MonkeyPatch.context() as patched:
        # Small chunks and short patience, so that a few records make many turns and stalls.
        patched.setattr(turns, "FIRST_CHUNK_BYTES", 256)
        patched.setattr(turns, "READ_BYTES_PER_CHUNK_BYTE", 1)
        patched.setattr(turns, "LIVE_TRAFFIC_TIMEOUT_S", 0.002)
        patched.setattr(replayer, "STALLED_AFTER_S", 0.001)
        patched.setattr(spooled_backlog_module, "STALLED_AFTER_S", 0.001)
        patched.setattr(backlog, "PULL_BYTES", 1_024)
        patched.setattr(backlog, "QUEUE_STEP_BYTES", 256)
        patched.setattr(replayer, "PULL_BYTES", 1_024)
        try:
            asyncio.run(live_out(script, home))
        finally:
            shutil.rmtree(home)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, len(NAMES) - 1), max_size=4, unique=True),
    st.lists(operations, min_size=1, max_size=40),
)
def test_every_message_is_acknowledged_in_flight_waiting_or_gone(
    kinds: list[int], script: list[tuple[str, int]]
) -> None:
    run([("publish", 9), *(("subscribe", len(NAMES) + kind) for kind in kinds), *script])
