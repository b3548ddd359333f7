"""Credit of subscriptions: unread messages of one subscription hold back that subscription alone.

Against a running broker.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from broker_core.client import EPOCH, NOW, AsyncClient, SyncClient
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.raw import RawClient

BODY = b"x" * 20_000


def numbered_bodies(number: int) -> list[bytes]:
    return [b"%06d" % at + BODY for at in range(number)]


async def test_nothing_is_sent_beyond_the_credit_but_for_the_delivery_that_passes_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        raw = await RawClient.connect(broker, "reader")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "scratch.t", "credit": 25_000})
        raw.send_command({"c": "subscribe", "id": "all", "topic": "scratch.u"})
        await raw.read_until("processed")
        await raw.read_until("processed")
        for body in numbered_bodies(5):
            await writer.publish("scratch.t", body)
            await writer.flush()
        await writer.publish("scratch.u", b"end")
        assert await raw.deliveries(3) == [*numbered_bodies(2), b"end"], (
            "two pass the credit, and the others wait"
        )
        backlog = broker.engine.roster.clients["reader"].backlog
        assert backlog.messages == 3 and backlog.queues[1].spent_since
        raw.send_command({"c": "credit", "id": "s", "upto": 45_000})
        assert await raw.deliveries(1) == numbered_bodies(3)[2:]
        raw.send_command({"c": "credit", "id": "s", "upto": 1})  # less than before takes nothing back
        raw.send_command({"c": "credit", "id": "s", "upto": 1_000_000})
        assert await raw.deliveries(2) == numbered_bodies(5)[3:]
        raw.close()


@pytest.mark.parametrize(("topic", "bookmark"), [("a", None), ("a", NOW), ("a", EPOCH), ("scratch.a", None)])
async def test_a_slow_handler_holds_up_neither_acknowledgements_nor_its_neighbours(
    tmp_path: Path, topic: str, bookmark: str | None
) -> None:
    number = 60
    async with (
        running_broker(tmp_path) as broker,
        AsyncClient(address_of(broker), "both", max_unread_bytes=100_000) as both,
    ):
        slow = await both.subscribe(topic, bookmark=bookmark)
        quick = await both.subscribe("b", bookmark=NOW)
        for at, body in enumerate(numbered_bodies(number)):
            await both.publish(topic, body)
            await both.publish("b", b"%d" % at)
            await both.flush()
            assert (await anext(aiter(quick))).body == b"%d" % at
        assert slow._credit.unread_bytes < 100_000 + 2 * len(BODY)
        got = []
        async for message in slow:
            got.append(message.body)
            if len(got) == number:
                break
        assert got == numbered_bodies(number)


async def test_what_a_slow_handler_leaves_is_read_from_the_log_later_and_takes_no_memory(
    tmp_path: Path,
) -> None:
    async with (
        running_broker(tmp_path) as broker,
        AsyncClient(address_of(broker), "both", max_unread_bytes=50_000) as both,
    ):
        slow = await both.subscribe("a", bookmark=NOW)
        backlog = broker.engine.roster.clients["both"].backlog
        await until(lambda: slow.completed.is_set())
        sent = 0
        while not backlog.recipients[1].account.in_log.messages:  # its credit is gone, and it has fallen back
            await both.publish("a", BODY)
            await both.flush()
            sent += 1
        await until(lambda: backlog.nbytes == 0)
        listed = await ask(broker, "clients")
        (entry,) = [one for one in listed if one["name"] == "both"]
        assert entry["lag_messages"] > 0
        await until(lambda: backlog.get_blocked_since(1) and not backlog.silent_since)
        got = 0
        async for _ in slow:
            got += 1
            if got == sent:
                break


def test_a_thread_that_blocks_in_a_handler_holds_up_no_other(tmp_path: Path) -> None:
    asyncio.run(_with_threads(tmp_path))


async def _with_threads(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        address = address_of(broker)
        await asyncio.to_thread(_threads, address)


def _threads(address: str) -> None:
    number = 60
    with SyncClient(address, "both", max_unread_bytes=100_000) as client:
        slow, quick = client.subscribe("a", bookmark=EPOCH), client.subscribe("b", bookmark=EPOCH)
        may_go, got = threading.Event(), list[bytes]()

        def handle() -> None:
            for message in slow:
                may_go.wait(60)
                got.append(message.body)
                if len(got) == number:
                    return

        handler = threading.Thread(target=handle)
        handler.start()
        for body in numbered_bodies(number):
            client.publish("a", body)
            client.publish("b", body[:6])
            client.flush(60)
        heard = []
        for message in quick:
            heard.append(message.body)
            if len(heard) == number:
                break
        assert heard == [body[:6] for body in numbered_bodies(number)] and not got
        may_go.set()
        handler.join(60)
        assert got == numbered_bodies(number)
