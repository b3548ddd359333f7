"""Both clients, over both transports, through a faulty network: no record is lost, doubled or out of order.

A publisher with a publish store and a subscriber with a bookmark store each have a faulty network of their
own. Its faults follow from a printed seed. Records that a flush reported as acknowledged are checked at the
broker over a good connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.client import (
    EPOCH,
    MOST_RECENT,
    AsyncClient,
    FileBookmarkStore,
    FilePublishStore,
    ReconnectPolicy,
    SyncClient,
)
from broker_core.config import TransportSettings
from tests.support.brokers import tcp_policy
from tests.support.faulty_network import (
    Direction,
    FaultyNetwork,
    NetworkFault,
    faulty_network,
    seed_of_the_day,
)
from tests.support.transports_process import broker_process

TOPIC = "a"
HEARTBEAT_MS = 400
PATIENT = ReconnectPolicy(
    first_delay=0.01, longest_delay=0.1, first_connect_timeout=120, connect_timeout=2, logon_timeout=2
)
FILLING = b" " * 400
DECK = len(NetworkFault) * len(Direction)


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    policy = tcp_policy()
    both = (*policy.transports, TransportSettings("websocket", "websocket", 0))
    with broker_process(replace(policy, transports=both)) as made:
        yield made


@pytest.fixture
def seed() -> int:
    return seed_of_the_day()


def address(kind: str, bad: FaultyNetwork) -> str:
    return f"tcp://127.0.0.1:{bad.port}" if kind == "tcp" else f"ws://127.0.0.1:{bad.port}/"


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number + FILLING for number in range(first, first + count)]


class BrokerLog:
    """Records of the broker, read by a client with a good connection."""

    def __init__(self, port: int, topic: str) -> None:
        self._address, self._topic = f"tcp://127.0.0.1:{port}", topic

    def has(self) -> list[int]:
        with SyncClient(self._address, "auditor") as client:
            subscription = client.subscribe(self._topic, bookmark=EPOCH)
            return [int(message.body) for message in subscription.messages(until_completed=True)]


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
async def test_the_async_client(ports: dict[str, int], kind: str, seed: int, tmp_path: Path) -> None:
    topic = f"async.{kind}"
    log = BrokerLog(ports["tcp"], topic)
    with faulty_network(ports[kind], seed) as up, faulty_network(ports[kind], seed + 1) as down:
        got: list[int] = []

        async def read() -> None:
            # Two runs of one application: the second continues at the bookmark in the first one's store.
            while True:
                store = FileBookmarkStore(tmp_path / "marks")
                async with AsyncClient(
                    address(kind, down),
                    f"reader-{topic}",
                    bookmark_store=store,
                    reconnect=PATIENT,
                    heartbeat_ms=HEARTBEAT_MS,
                    max_unread_bytes=20_000,
                ) as reader:
                    subscription = await reader.subscribe(topic, bookmark=MOST_RECENT)
                    async for message in subscription:
                        got.append(int(message.body))
                        subscription.done(message)
                        if len(got) % 400 == 0:
                            break

        reading = asyncio.create_task(read())
        last = 0
        async with AsyncClient(
            address(kind, up),
            f"writer-{topic}",
            publish_store=FilePublishStore(tmp_path / "unsent"),
            reconnect=PATIENT,
            heartbeat_ms=HEARTBEAT_MS,
        ) as writer:
            while up.faults_left or down.faults_left:
                await writer.publish_many(topic, numbers(last + 1, 20))
                last += 20
                await writer.flush()
                if last % 1_000 == 0:
                    assert await asyncio.to_thread(log.has) == list(range(1, last + 1)), (
                        "every acknowledged record is in the log"
                    )
                assert not reading.done()
        assert await asyncio.to_thread(log.has) == list(range(1, last + 1))
        async with asyncio.timeout(60):
            while len(got) < last:
                await asyncio.sleep(0.01)
        reading.cancel()
        await asyncio.wait([reading])
        assert got == list(range(1, last + 1))
        assert len(set(up.injected)) == len(set(down.injected)) == DECK


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
def test_the_sync_client(ports: dict[str, int], kind: str, seed: int, tmp_path: Path) -> None:
    topic = f"sync.{kind}"
    log = BrokerLog(ports["tcp"], topic)
    with faulty_network(ports[kind], seed) as up, faulty_network(ports[kind], seed + 1) as down:
        got, wanted, may_end = list[int](), 0, threading.Event()

        def read() -> None:
            with SyncClient(
                address(kind, down),
                f"reader-{topic}",
                bookmark_store=FileBookmarkStore(tmp_path / "marks"),
                reconnect=PATIENT,
                heartbeat_ms=HEARTBEAT_MS,
                max_unread_bytes=20_000,
            ) as reader:
                subscription = reader.subscribe(topic, bookmark=MOST_RECENT)
                for message in subscription:
                    got.append(int(message.body))
                    subscription.done(message)
                    if may_end.is_set() and len(got) >= wanted:
                        return

        reading = threading.Thread(target=read, name="reader")
        reading.start()
        with SyncClient(
            address(kind, up),
            f"writer-{topic}",
            publish_store=FilePublishStore(tmp_path / "unsent"),
            reconnect=PATIENT,
            heartbeat_ms=HEARTBEAT_MS,
        ) as writer:
            while up.faults_left or down.faults_left:
                for body in numbers(wanted + 1, 20):
                    writer.publish(topic, body)
                wanted += 20
                writer.flush(60)
                assert reading.is_alive()
            wanted += 1
            may_end.set()  # before the last message, since the reader checks it on arrival
            writer.publish(topic, numbers(wanted, 1)[0])
            writer.flush(60)
        reading.join(60)
        assert not reading.is_alive()
        assert got == log.has() == list(range(1, wanted + 1))
        assert len(set(up.injected)) == len(set(down.injected)) == DECK
