"""Fairness between one client's thousands of commands and another's few, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_core import batch
from broker_core.client import EPOCH, AsyncClient, tls_context
from broker_core.protocols.native import PUBLISH, encode_command, encode_frame_header
from tests.broker_core.access.making import policy, user
from tests.support.brokers import address_of, running_broker, until
from tests.support.certificates import Authority
from tests.support.raw import RawClient

PUBLISHES = 20_000
SUBSCRIBES = 1_000
FLUSH = encode_command({"c": "flush", "id": "all"})


def one_by_one(number: int) -> bytes:
    """Return a publish as a frame of its own."""
    return encode_command({"c": "publish", "topic": "many", "data": number})


def one_record_batch(number: int) -> bytes:
    """Return a publish as a batch of one record."""
    built = batch.build_single_topic_batch("busy", "many", [b"%d" % number], 0)
    return encode_frame_header(PUBLISH, 0, len(built)) + built


async def busy_client_progress(other: RawClient, state: Callable[[], int], end: int) -> set[int]:
    """Return the progress of the busy client at each reply to another client.

    The values at the start and at the end are left out.
    """
    seen = set[int]()
    async with asyncio.timeout(60):
        while state() < end:
            other.send_command({"c": "heartbeat"})
            await other.read_until("heartbeat")
            seen.add(state())
    other.close()
    return seen - {0, end}


@pytest.mark.parametrize("publish", [one_by_one, one_record_batch])
async def test_single_publishes_of_one_client_leave_turns_to_others(
    tmp_path: Path, publish: Callable[[int], bytes]
) -> None:
    async with running_broker(tmp_path) as broker:
        busy, other = await RawClient.connect(broker, "busy"), await RawClient.connect(broker, "other")
        busy.write(b"".join(map(publish, range(PUBLISHES))) + FLUSH)
        seen = await busy_client_progress(other, lambda: broker.engine.dispatch.messages_in, PUBLISHES)
        assert (await busy.read_until("completed"))["id"] == "all"
        assert len(seen) > 50, "one read of 256 KiB held the loop"
        busy.close()


async def test_a_thousand_subscribes_of_one_client_leave_turns_to_others(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        busy, other = await RawClient.connect(broker, "busy"), await RawClient.connect(broker, "other")
        commands = (
            {"c": "subscribe", "id": f"s{n}", "topic": f"t.{n}.>", "filter": f"/n = {n}"}
            for n in range(SUBSCRIBES)
        )
        busy.write(b"".join(map(encode_command, commands)) + FLUSH)
        seen = await busy_client_progress(
            other, lambda: len(broker.engine.roster.clients["busy"].subscriptions), SUBSCRIBES
        )
        assert (await busy.read_until("completed"))["id"] == "all"
        # All of it is some thirty turns of 2 ms, an answer four of them; on a slower machine there are more.
        assert len(seen) > 2, "it held the loop"
        busy.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_what_a_client_sent_before_it_left_is_published_whole_and_in_order(
    tmp_path: Path, tls: bool
) -> None:
    authority = Authority(tmp_path)
    made = policy(
        user("maria"), authentication="none", restricted=False, tls=authority.transport() if tls else None
    )
    async with running_broker(tmp_path / "home", made) as broker:
        context = tls_context(authority.certificate) if tls else None
        port = broker.statistics.transports[0]["port"]
        busy = RawClient(*await asyncio.open_connection("127.0.0.1", port, ssl=context))
        busy.send_command({"c": "logon", "name": "busy"})
        await busy.read_until("processed")  # what a peer leaves unread makes its kernel reset the connection
        busy.write(b"".join(map(one_by_one, range(PUBLISHES))))
        busy.close()
        address = address_of(broker).replace("tcp:", "tcps:") if tls else address_of(broker)
        async with AsyncClient(address, "reader", tls=authority.certificate if tls else None) as reader:
            subscription, bodies = await reader.subscribe("many", bookmark=EPOCH), list[bytes]()
            async with asyncio.timeout(60):
                async for found in subscription.batches():
                    bodies += found.bodies()
                    if len(bodies) == PUBLISHES:
                        break
        assert bodies == [b"%d" % number for number in range(PUBLISHES)]
        await until(lambda: "busy" not in broker.engine.roster.clients)


async def test_a_frame_that_cannot_be_read_ends_the_connection_behind_what_came_before_it(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker:
        busy = await RawClient.connect(broker, "busy")
        busy.write(b"".join(map(one_by_one, range(3_000))) + b"\xff" * 16)
        assert (await busy.read_until("closing"))["code"] in ("bad_frame", "frame_too_large")
        assert broker.engine.dispatch.messages_in == 3_000
