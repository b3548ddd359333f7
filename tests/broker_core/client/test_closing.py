"""Closing a client while the broker is unreachable: unsent messages, waiting calls and their timeouts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_core.client import (
    AsyncClient,
    AsyncGroups,
    FilePublishStore,
    GroupConfig,
    MemoryPublishStore,
    ReconnectPolicy,
    SyncClient,
    SyncGroups,
)
from broker_core.client.sync_client import LoopThread
from broker_core.errors import ClientError, OperatorError
from broker_core.protocols import commands
from tests.broker_core.client.fake_broker import BrokerConnection, FakeBroker
from tests.broker_core.client.test_sync_client import broker as broker_thread  # noqa: F401

QUICK = ReconnectPolicy(first_delay=0.001, longest_delay=0.01, logon_timeout=0.5)
BODY = b"x" * 1_000


def in_a_thread(work: Callable[[], object], seconds: float = 30.0) -> None:
    """Do it in a thread that must end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it never returns"
    if failures:
        raise failures[0]


def go_away(broker: FakeBroker) -> None:
    """Make a broker on another thread refuse messages and logons."""
    gone = threading.Event()

    def leave() -> None:
        broker.silent = True
        broker.drop()
        gone.set()

    broker.soon(leave)
    assert gone.wait(10)


def full_client(broker: FakeBroker, store: object, **options: object) -> SyncClient:
    """Return a client whose broker is unreachable and whose store and queue are full."""
    client = SyncClient(
        broker.address, "s", reconnect=QUICK, publish_store=store, batch_bytes=1_000, buffered=True, **options
    ).start()
    go_away(broker)
    for _ in range(100):
        client.publish("a", BODY)
    return client


def test_close_returns_while_the_broker_is_away_and_the_store_is_full_and_says_what_is_left(
    broker_thread: FakeBroker,  # noqa: F811
) -> None:
    client = full_client(broker_thread, MemoryPublishStore(10_000))

    def close() -> None:
        with pytest.raises(OperatorError) as left:
            client.close(timeout=0.3)
        assert left.value.code == "unsent_messages"
        assert left.value.details["messages"] == 100
        assert left.value.details["bytes"] >= 100 * len(BODY)
        assert left.value.fix

    in_a_thread(close)
    client.close()  # again: it is closed, and was said


def test_threads_that_close_at_the_same_time_are_all_told_what_is_left_and_publishers_that_it_is_closed(
    broker_thread: FakeBroker,  # noqa: F811
) -> None:
    client = SyncClient(
        broker_thread.address, "s", reconnect=QUICK, publish_store=MemoryPublishStore(10_000)
    ).start()
    go_away(broker_thread)
    heard: list[object] = []

    def end_of(call: Callable[[], object]) -> None:
        try:
            heard.append(call())
        except BaseException as error:
            heard.append(getattr(error, "code", error))

    def publish() -> None:
        while True:
            client.publish("a", BODY)

    publishers = [threading.Thread(target=end_of, args=(publish,), daemon=True) for _ in range(3)]
    closers = [
        threading.Thread(target=end_of, args=(lambda: client.close(timeout=1),), daemon=True)
        for _ in range(3)
    ]
    for thread in publishers:
        thread.start()
    while client.unacknowledged_bytes < 9_000:
        time.sleep(0.01)
    with pytest.raises(TimeoutError, match="no answer within"):
        client.flush(timeout=0.1)
    for thread in closers:
        thread.start()
    for thread in (*closers, *publishers):
        thread.join(30)
        assert not thread.is_alive()
    assert sorted(map(str, heard)) == ["client_closed"] * 3 + ["unsent_messages"] * 3


async def test_tasks_that_close_at_the_same_time_all_get_the_unsent_messages(broker: FakeBroker) -> None:
    client = await AsyncClient(broker.address, "a", reconnect=QUICK).start()
    broker.silent = True
    broker.drop()
    await client.publish("a", BODY)
    found = await asyncio.gather(
        *(client.close(seconds) for seconds in (0.6, 0.3, 5)), return_exceptions=True
    )
    assert [getattr(one, "code", one) for one in found] == ["unsent_messages"] * 3
    await client.close()  # again: it is closed, and was said


def test_what_a_file_keeps_is_not_lost_and_goes_out_with_the_next_client(
    broker_thread: FakeBroker,  # noqa: F811
    tmp_path: Path,
) -> None:
    client = full_client(broker_thread, FilePublishStore(tmp_path / "unsent", limit=10_000))
    in_a_thread(lambda: client.close(timeout=0.3))
    broker_thread.silent = False
    with SyncClient(broker_thread.address, "s", publish_store=FilePublishStore(tmp_path / "unsent")) as again:
        again.flush(30)
    assert len(broker_thread.bodies) == 100, "also those that still stood in line"


def test_leaving_with_is_bounded_and_raises_or_leaves_the_error_that_is_under_way_and_adds_to_it(
    broker_thread: FakeBroker,  # noqa: F811
) -> None:
    def publish(fail: bool) -> None:
        with SyncClient(broker_thread.address, "s", reconnect=QUICK, close_timeout=0.3) as client:
            go_away(broker_thread)
            client.publish("a", BODY)
            if fail:
                raise ZeroDivisionError

    with pytest.raises(OperatorError, match="unsent_messages"):
        in_a_thread(lambda: publish(False))
    broker_thread.silent = False
    with pytest.raises(ZeroDivisionError) as caught:
        in_a_thread(lambda: publish(True))
    assert "unsent_messages" in "".join(caught.value.__notes__)


def test_a_loop_that_is_stuck_in_the_applications_callback_does_not_hold_close_up(
    broker_thread: FakeBroker,  # noqa: F811
) -> None:
    stuck, go_on = threading.Event(), threading.Event()

    def block(_: object) -> None:
        stuck.set()
        go_on.wait(60)

    client = SyncClient(broker_thread.address, "s", reconnect=QUICK, on_disconnect=block).start()
    broker_thread.soon(broker_thread.drop)
    assert stuck.wait(10)

    def close() -> None:
        with pytest.raises(TimeoutError):
            client.close(timeout=0.1)

    in_a_thread(close)
    go_on.set()


@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize("error", [TimeoutError(), TimeoutError("the disk took longer than 5 s")])
def test_a_timeout_of_the_last_work_is_raised_as_it_is_and_the_thread_ends(
    timeout: float | None, error: TimeoutError
) -> None:
    async def nothing() -> None: ...

    async def fail() -> None:
        raise error

    before = threading.active_count()
    loop = LoopThread("s")
    loop.start(nothing())
    with pytest.raises(TimeoutError) as raised:
        loop.stop(fail(), timeout)
    assert raised.value.args == error.args
    assert (loop.is_running, threading.active_count()) == (False, before)


def test_groups_close_in_time_and_name_the_group(broker_thread: FakeBroker) -> None:  # noqa: F811
    client = SyncGroups({"all": GroupConfig(">", broker_thread.address)}, "s", reconnect=QUICK).start()
    go_away(broker_thread)
    client.publish("a", BODY)

    def close() -> None:
        with pytest.raises(OperatorError) as left:
            client.close(timeout=0.3)
        assert (left.value.code, left.value.details["group"]) == ("unsent_messages", "all")

    in_a_thread(close)


async def test_the_asyncio_client_waits_for_acknowledgements_and_says_what_is_left(
    broker: FakeBroker,
) -> None:
    async with AsyncClient(broker.address, "me", reconnect=QUICK) as client:
        await client.publish("a", BODY)
    assert broker.bodies == [BODY], "leaving waits for what was published"
    broker.hold_acks = True
    client = await AsyncClient(broker.address, "me", reconnect=QUICK).start()
    await client.publish_many("a", [BODY] * 3)
    async with asyncio.timeout(30):
        with pytest.raises(OperatorError) as left:
            await client.close(timeout=0.1)
    assert (left.value.code, left.value.details["messages"]) == ("unsent_messages", 3)
    await client.close()


async def test_an_unreported_refusal_is_raised_by_close(broker: FakeBroker) -> None:
    client = await AsyncClient(broker.address, "me", reconnect=QUICK).start()
    broker.refuse_next = ClientError("not_entitled", "Not here.")
    await client.publish("a", BODY)
    with pytest.raises(ClientError, match="not_entitled"):
        await client.close()


async def test_several_groups_of_the_asyncio_client_close_in_time(broker: FakeBroker) -> None:
    client = await AsyncGroups({"all": GroupConfig(">", broker.address)}, "me", reconnect=QUICK).start()
    broker.hold_acks = True
    await client.publish("a", BODY)
    async with asyncio.timeout(30):
        with pytest.raises(OperatorError, match="unsent_messages"):
            await client.close(timeout=0.1)


# Publishing.


def test_publish_returns_when_its_store_has_the_message(broker_thread: FakeBroker, tmp_path: Path) -> None:  # noqa: F811
    """A process that is killed right behind its publish() has the message in its file, whatever its loop was
    doing.
    """
    program = textwrap.dedent(f"""
        import os, signal
        from broker_core.client import FilePublishStore, SyncClient
        store = FilePublishStore({str(tmp_path / "unsent")!r})
        client = SyncClient({broker_thread.address!r}, "s", publish_store=store)
        client.start()
        for number in range(50):
            client.publish("a", str(number))
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    broker_thread.hold_acks = True
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[3], env=os.environ, timeout=60
    )
    assert ended.returncode == -signal.SIGKILL
    store = FilePublishStore(tmp_path / "unsent")
    assert (store.last_sequence, store.messages) == (50, 50)
    store.close()


def test_a_store_that_refuses_is_said_by_that_publish_itself(
    broker_thread: FakeBroker,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryPublishStore()

    def refuse(first: int, last: int, batch: object) -> None:
        raise OperatorError("store_failed", "No room.", "Make some.")

    with SyncClient(broker_thread.address, "s", publish_store=store) as client:
        client.publish("a", b"1")
        with monkeypatch.context() as patch:
            patch.setattr(store, "add", refuse)
            with pytest.raises(OperatorError, match="store_failed"):
                client.publish("a", b"2")
        client.publish("a", b"3")
        client.flush(30)
    assert broker_thread.bodies == [b"1", b"3"]


def test_publishing_into_a_full_store_ends_in_time_and_takes_nothing(broker_thread: FakeBroker) -> None:  # noqa: F811
    store = MemoryPublishStore(5_000)
    client = SyncClient(broker_thread.address, "s", reconnect=QUICK, publish_store=store).start()
    go_away(broker_thread)

    def fill() -> None:
        with pytest.raises(TimeoutError):
            for _ in range(100):
                client.publish("a", BODY, timeout=0.2)
        taken = store.messages
        assert 0 < taken < 100
        with pytest.raises(TimeoutError):
            client.publish_many("a", [BODY] * 3, timeout=0.2)
        assert store.messages == taken

    in_a_thread(fill)
    broker_thread.silent = False
    client.flush(30)
    client.close()


def test_buffered_publishing_into_a_full_line_ends_in_time(broker_thread: FakeBroker) -> None:  # noqa: F811
    client = SyncClient(
        broker_thread.address, "s", reconnect=QUICK, publish_store=MemoryPublishStore(5_000), buffered=True
    ).start()
    go_away(broker_thread)

    def fill() -> None:
        with pytest.raises(TimeoutError):
            for _ in range(20_000):
                client.publish("a", BODY, timeout=0.2)
        with pytest.raises(OperatorError, match="unsent_messages"):
            client.close(timeout=0.1)

    in_a_thread(fill)


def test_several_threads_publish_and_each_keeps_its_order(broker_thread: FakeBroker) -> None:  # noqa: F811
    with SyncClient(broker_thread.address, "s") as client:

        def publish(thread: int) -> None:
            for number in range(200):
                client.publish("a", f"{thread}-{number}")

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        client.flush(30)
    for number in range(3):
        own = [body for body in broker_thread.bodies if body.startswith(b"%d-" % number)]
        assert own == [b"%d-%d" % (number, of) for of in range(200)]


# Calls that wait for an answer.


async def test_calls_that_nobody_answers_end_in_time(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = BrokerConnection.subscribe

    def subscribe(peer: BrokerConnection, command: commands.Subscribe) -> None:
        if command.topic != "unanswered":
            take(peer, command)

    monkeypatch.setattr(BrokerConnection, "subscribe", subscribe)
    async with AsyncClient(broker.address, "me", reconnect=QUICK, request_timeout=0.2) as client:
        with pytest.raises(TimeoutError, match="subscribe"):
            await client.subscribe("unanswered")
        assert not client._subscriptions.by_id
        subscription = await client.subscribe("a")
        for steered in (subscription.pause, subscription.resume):
            with pytest.raises(TimeoutError):
                await steered()


async def test_a_flush_has_a_timeout(broker: FakeBroker) -> None:
    broker.hold_acks = True
    client = await AsyncClient(broker.address, "me", reconnect=QUICK).start()
    await client.publish("a", b"x")
    with pytest.raises(TimeoutError, match="flush"):
        await client.flush(timeout=0.1)
    broker.hold_acks = False
    broker.release()
    await client.flush(timeout=30)
    await client.close()


def test_reading_has_a_timeout_and_loses_nothing_by_it(broker_thread: FakeBroker) -> None:  # noqa: F811
    with SyncClient(broker_thread.address, "s") as client:
        subscription = client.subscribe("a")
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            next(subscription.messages(timeout=0.2))
        assert time.monotonic() - began >= 0.2
        client.publish("a", b"1")
        assert next(subscription.messages(timeout=30)).body == b"1"
