"""Limits of connections before logon, and of connections per address.

Both in unit tests and in a running broker.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.access import hash_password
from broker_core.client import AsyncClient
from broker_core.connections import admission, logons
from broker_core.connections.admission import InputBufferUsage, PendingConnections
from broker_core.connections.inbox import ITEM_BYTES
from broker_core.errors import ClientError
from broker_core.protocols.native import BEFORE_LOGON, COMMAND, PUBLISH, encode_command, encode_frame_header
from tests.broker_core.access.making import policy, user
from tests.support.broker_process import start_broker
from tests.support.brokers import address_of, running_broker, until
from tests.support.raw import RawClient

HALF_A_FRAME = encode_frame_header(COMMAND, 0, BEFORE_LOGON) + b"x" * (BEFORE_LOGON // 2)


@pytest.mark.parametrize("kind", [COMMAND, PUBLISH])
async def test_a_large_frame_before_the_logon_is_refused_by_its_header(tmp_path: Path, kind: int) -> None:
    async with running_broker(tmp_path) as broker:
        raw = await RawClient.open(broker)
        raw.write(encode_frame_header(kind, 0, BEFORE_LOGON + 1))
        error = await raw.read_until("error")
        assert (error["code"], error["details"]["limit"]) == ("frame_too_large", BEFORE_LOGON)
        assert (await raw.read_until("closing"))["code"] == "frame_too_large"


async def test_after_the_logon_frames_may_be_large(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        raw = await RawClient.connect(broker, "p")
        await raw.publish("a", [b"x" * 4_000_000], first=1)
        assert (await raw.read_until("persisted"))["sequence"] == 1
        assert broker.engine.pending_connections.buffered == 0 < broker.engine.pending_connections.input
        raw.close()
        await until(lambda: broker.engine.pending_connections.input == 0)


async def test_unfinished_frames_before_the_logon_have_one_budget_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "BUFFER_BYTES", 200_000)
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "good") as good:
        held = []
        for _ in range(20):
            raw = await RawClient.open(broker)
            raw.write(HALF_A_FRAME)
            held.append(raw)
        refused = [asyncio.create_task(raw.read_until("closing")) for raw in held]
        await until(lambda: sum(task.done() for task in refused) >= 15)
        # Where bytes were left unread, the kernel may say so before the last word is read.
        done = [task for task in refused if task.done() and task.exception() is None]
        assert {task.result()["code"] for task in done} <= {"input_full"}
        await until(lambda: len(broker.engine.roster.connections) <= 6)
        assert broker.engine.pending_connections.buffered <= 200_000
        await good.publish_many("a", [b"1"])
        await good.flush()
        for raw in held:
            raw.close()
        await asyncio.gather(*refused, return_exceptions=True)
        await until(lambda: broker.engine.pending_connections.buffered == 0)


@pytest.mark.parametrize("kind", ["tcp", "stomp"])
async def test_what_comes_behind_a_logon_that_is_checked_shares_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(logons, "verify_password", lambda *_: may_end.wait(30))
    monkeypatch.setattr(admission, "BUFFER_BYTES", 90_000)
    maria = user("maria", password=hash_password("right"))
    made = policy(maria, authentication="password", restricted=False)
    made = replace(made, transports=tuple(replace(one, kind=kind) for one in made.transports))
    logon = {
        "tcp": encode_command({"c": "logon", "name": "c", "user": "maria", "password": "right"}),
        "stomp": b"CONNECT\naccept-version:1.2\nlogin:maria\npasscode:right\n\n\0",
    }[kind]
    # Frames of STOMP aren't made before they are taken, so that they take no more than their bytes.
    small = {"tcp": encode_frame_header(COMMAND, 0, 0), "stomp": b"ABORT\nx:" + b"y" * ITEM_BYTES + b"\n\n\0"}
    tiny = small[kind]
    async with running_broker(tmp_path, made) as broker:
        hall, few, many = (
            broker.engine.pending_connections,
            await RawClient.open(broker),
            await RawClient.open(broker),
        )
        few.write(logon + 200 * tiny)
        await until(lambda: 200 * ITEM_BYTES <= hall.buffered < 90_000)
        before = hall.buffered
        many.write(logon + 200 * tiny)
        try:
            assert await many.reads_before_end(b"input_full")
            assert hall.buffered == before, "of who was turned away nothing stays, whether or not it reads"
        finally:
            may_end.set()
        await until(lambda: hall.buffered == 0)
        few.close()
        many.close()


async def test_the_oldest_that_has_not_logged_on_makes_room_and_who_logs_on_comes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_PENDING", 3)
    async with running_broker(tmp_path) as broker:
        silent = [await RawClient.open(broker) for _ in range(5)]
        for told in silent[:2]:
            assert (await told.read_until("closing"))["code"] == "too_many_connections"
        async with AsyncClient(address_of(broker), "good") as good:
            await good.publish_many("a", [b"1"])
            await good.flush()
            assert broker.engine.pending_connections.pending == 2, (
                "it made one more leave, and is no guest any more"
            )
        for raw in silent:
            raw.close()
        await until(lambda: not broker.engine.pending_connections.pending)


def test_connections_asked_to_close_are_dropped_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_PENDING", 2)
    monkeypatch.setattr(admission, "MAX_CLOSING", 1)
    hall, ended = PendingConnections(), []

    class FakePendingConnection:
        def __init__(self, remote: str) -> None:
            self.remote = remote
            hall.add_pending(self)

        def evict(self) -> None:
            ended.append(("told", self.remote))
            hall.mark_closing(self)

        def drop(self) -> None:
            ended.append(("dropped", self.remote))
            hall.remove_closing(self)

    lone, first, second = (
        FakePendingConnection("a:1"),
        FakePendingConnection("b:1"),
        FakePendingConnection("b:2"),
    )
    assert ended == [("told", "b:1")], "of the address that has most"
    FakePendingConnection("b:3")
    assert ended[1:] == [("told", "b:2"), ("dropped", "b:1")]
    hall.mark_authenticated(lone)
    hall.remove_closing(first)
    hall.remove_closing(second)
    assert hall.pending == 1


@pytest.mark.parametrize("sent", [b"", HALF_A_FRAME, b"\xff" * 100])
async def test_one_that_never_logged_on_leaves_nothing_to_the_collector(tmp_path: Path, sent: bytes) -> None:
    async with running_broker(tmp_path) as broker:
        raw = await RawClient.open(broker)
        await until(lambda: broker.engine.roster.connections)
        (connection,) = broker.engine.roster.connections
        # Itself is known to the law that tests are held to; what it is made of is known to it alone.
        made_of = (connection.backlog, connection.inbox, connection.publishing)  # type: ignore[attr-defined]
        parts = [weakref.ref(one) for one in made_of]
        del connection, made_of
        gc.collect()
        gc.disable()
        try:
            raw.write(sent)
            await asyncio.sleep(0)
            raw.close()
            await until(lambda: not any(part() for part in parts))
        finally:
            gc.enable()


async def test_memory_of_a_connection_is_free_when_it_is_lost(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        raw = await RawClient.connect(broker, "p")
        sink = broker.engine.roster.clients["p"].sink
        raw.write(encode_frame_header(PUBLISH, 0, 8_000_000) + bytes(4_000_000))
        await until(lambda: sink._reader.buffered_bytes > 2_000_000)
        raw.close()
        await until(lambda: not broker.engine.roster.connections)
        assert sink._reader.buffered_bytes == 0, "although somebody still knows it"


async def test_an_address_has_its_share_of_the_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_FROM_ADDRESS", 2)
    async with running_broker(tmp_path) as broker:
        first, second = [await RawClient.connect(broker, name) for name in ("a", "b")]
        third = await RawClient.open(broker)
        assert (await third.read_until("closing"))["code"] == "too_many_connections"
        first.close()
        await until(lambda: "a" not in broker.engine.roster.clients)
        await RawClient.connect(broker, "c")
        second.close()


def test_an_address_has_its_share_of_the_logons() -> None:
    room = PendingConnections()
    for _ in range(admission.LOGON_BURST):
        room.check_logon_rate("10.0.0.1:5", 0)
    with pytest.raises(ClientError) as caught:
        room.check_logon_rate("10.0.0.1:6", 0)
    assert (caught.value.code, caught.value.details["retry_after_ms"]) == ("too_many_logons", 1_000)
    room.check_logon_rate("10.0.0.2:5", 0)
    for _ in range(admission.LOGONS_PER_SECOND):
        room.check_logon_rate("10.0.0.1:5", 1_000)
    with pytest.raises(ClientError):
        room.check_logon_rate("10.0.0.1:5", 1_000)


def test_no_more_addresses_are_remembered_than_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_REMEMBERED", 3)
    room = PendingConnections()
    for number in range(10):
        room.check_logon_rate(f"10.0.0.{number}:1", 0)
    assert len(room._logons) == 3


@pytest.mark.parametrize("name", [".", "..", "..."])
async def test_a_name_of_dots_alone_is_no_name(tmp_path: Path, name: str) -> None:
    async with running_broker(tmp_path) as broker:
        raw = await RawClient.open(broker)
        raw.send_command({"c": "logon", "name": name})
        assert (await raw.read_until("error"))["code"] == "bad_client_name"


async def test_connections_leave_the_log_the_files_that_it_needs(tmp_path: Path) -> None:
    """The process may open 200 files.

    400 clients connect without logon before the log has opened its first segment.
    """
    process, port = await asyncio.to_thread(start_broker, tmp_path, open_files=200)
    try:
        async with asyncio.timeout(60), AsyncClient(f"tcp://127.0.0.1:{port}", "p") as client:
            crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
            await until(lambda: sum(map(_is_closed, crowd)) >= 200)
            await client.publish("a", b"1")
            await client.flush()
            async with AsyncClient(f"tcp://127.0.0.1:{port}", "q") as other:
                await other.publish("a", b"2")
                await other.flush()
            assert process.is_alive()
            for one in crowd:
                one.close()
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the broker has closed the connection; received bytes are dropped."""
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def incomplete_frame(share: int, total: int = 15_000_000) -> bytes:
    return encode_frame_header(PUBLISH, 0, total) + b"x" * share


async def test_unfinished_frames_after_the_logon_have_a_pool_and_a_healthy_publisher_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that hold unfinished frames are closed, oldest first.

    Clients that finish their frames are not.
    """
    monkeypatch.setattr(admission, "UNFINISHED_BYTES", 8_000_000)
    async with running_broker(tmp_path) as broker:
        hall, roster = broker.engine.pending_connections, broker.engine.roster
        stalled = [await RawClient.connect(broker, f"stalled-{number}") for number in range(20)]
        healthy = await RawClient.connect(broker, "healthy")
        for number, raw in enumerate(stalled):
            raw.write(incomplete_frame(900_000))
            await until(lambda name=raw.name: name not in roster.clients or is_in_roster(roster, name))  # type: ignore[misc]
            assert hall.pool.nbytes <= 8_000_000
            await healthy.publish("a", [b"x" * 1_000_000], first=number + 1)
            assert (await healthy.read_until("persisted"))["sequence"] == number + 1
        assert "healthy" in roster.clients
        left = {name for name in roster.clients if name.startswith("stalled")}
        assert 0 < len(left) < 8
        assert "stalled-0" not in left and "stalled-19" in left
        assert (await stalled[0].read_until("closing"))["code"] == "input_full"
        for raw in (*stalled, healthy):
            raw.close()
        await until(lambda: hall.pool.nbytes == 0 == hall.input)


def is_in_roster(roster: Any, name: str) -> bool:
    return bool(roster.clients[name].sink._unfinished.nbytes >= 900_000)


def test_the_pool_gives_up_the_oldest_frame_of_the_largest_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "UNFINISHED_BYTES", 100)
    hall, gone = PendingConnections(), []

    def frame(share: str, name: str) -> InputBufferUsage:
        made = InputBufferUsage(hall, lambda _: gone.append(name))
        made.on_logged_on(share)
        return made

    first, second, third = frame("maria", "first"), frame("maria", "second"), frame("maria", "third")
    other = frame("vera", "other")
    for one, nbytes in ((first, 30), (second, 30), (third, 10), (other, 25)):
        one.set_bytes(nbytes)
    assert (hall.pool.nbytes, gone) == (95, [])
    first.progress()  # a frame became whole: what first holds now is younger
    other.set_bytes(35)
    assert (hall.pool.nbytes, gone) == (75, ["second"])
    with pytest.raises(ClientError, match="input_full"):
        frame("joe", "large").set_bytes(101)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from(["hold", "progress"]), st.integers(0, 60)), max_size=60
    )
)
def test_the_pool_adds_up_after_any_steps(steps: list[tuple[int, str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "UNFINISHED_BYTES", 100)
        patch.setattr(admission, "INPUT_BYTES", 90)
        hall = PendingConnections()
        frames = [InputBufferUsage(hall, lambda _: None) for _ in range(8)]
        for number, one in enumerate(frames):
            one.on_logged_on(f"user-{number % 3}")
        for number, step, nbytes in steps:
            if step == "progress":
                frames[number].progress()
                continue
            try:
                frames[number].set_bytes(nbytes)
            except ClientError:
                frames[number].set_bytes(0)
            assert hall.pool.nbytes == hall.input == sum(one.nbytes for one in frames) <= 90
