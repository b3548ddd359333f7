"""What a client that publishes is answered while its batches are on their way to the disk, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from broker_core.batch import Batch
from broker_core.broker import Broker
from broker_core.connections.publisher import MOST_UNCOMMITTED
from broker_core.errors import JournalError
from broker_core.journal.segment import Position
from broker_core.protocols.native import encode_command
from tests.support.brokers import running_broker, until
from tests.support.raw import RawClient


def publish(number: int) -> bytes:
    return encode_command({"c": "publish", "topic": "t", "data": number})


def flush(id: str) -> bytes:
    return encode_command({"c": "flush", "id": id})


@contextmanager
def stalled_disk(broker: Broker, problem: JournalError | None = None) -> Iterator[None]:
    """Nothing is written to the log until the block ends; then it is, or fails with the problem."""
    disk, journal = threading.Event(), broker.engine.journal
    write = journal.write

    def slow_write(batches: Sequence[Batch]) -> list[Position]:
        disk.wait(60)
        if problem is not None:
            raise problem
        return write(batches)

    journal.write = slow_write  # type: ignore[method-assign]
    try:
        yield
    finally:
        journal.write = write  # type: ignore[method-assign]
        disk.set()


async def test_a_flush_waits_for_what_was_published_before_it_alone(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        client, many = await RawClient.connect(broker, "busy"), 20 * MOST_UNCOMMITTED
        client.write(flush("none") + publish(0) + flush("first") + b"".join(map(publish, range(1, many))))
        for id in ("none", "first"):
            assert (await client.until("completed"))["id"] == id
        assert broker.engine.dispatch.messages_in < many, "it waited for all that came behind it"
        client.write(flush("all"))
        assert (await client.until("completed"))["id"] == "all"
        assert broker.engine.dispatch.messages_in == many
        client.close()


async def test_a_client_whose_flushes_wait_for_the_disk_is_not_read_from(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        client, many = await RawClient.connect(broker, "busy"), 4 * MOST_UNCOMMITTED
        with stalled_disk(broker):
            client.write(publish(0) + b"".join(flush(str(number)) for number in range(many)) + publish(1))
            other = await RawClient.connect(broker, "other")
            await until(lambda: broker.engine.dispatch.messages_in == 1)
            for _ in range(50):  # turns in which it would be read from
                other.command({"c": "heartbeat"})
                await other.until("heartbeat")
            assert broker.engine.dispatch.messages_in == 1
        for number in range(many):
            assert (await client.until("completed"))["id"] == str(number)
        await until(lambda: broker.engine.dispatch.messages_in == 2)
        client.close()
        other.close()


async def test_a_logon_says_no_sequence_that_is_not_on_disk(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        client, back = await RawClient.connect(broker, "busy"), await RawClient.open(broker)
        with stalled_disk(broker):
            await client.publish("t", [b"1", b"2"], 1)
            await client.publish("scratch.t", [b"3"], 3)
            await until(lambda: broker.engine.dispatch.publisher_sequence("busy") == 3)
            back.command({"c": "logon", "name": "busy", "id": "back"})
            back.command({"c": "flush", "id": "behind"})
            assert (await client.until("closing"))["code"] == "client_replaced"
            assert "busy" not in broker.engine.roster.clients and not broker.engine.frontier.durable
        assert (await back.until("ack"))["sequence"] == 3 and broker.engine.frontier.durable >= 2
        assert (await back.until("completed"))["id"] == "behind"
        back.close()


async def test_a_logon_behind_a_write_that_fails_says_what_is_on_disk(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        client, back = await RawClient.connect(broker, "busy"), await RawClient.open(broker)
        await client.publish("t", [b"1"], 1)
        await client.until("persisted")
        with stalled_disk(broker, JournalError("disk_full", "There is no room.")):
            await client.publish("t", [b"2"], 2)
            await until(lambda: broker.engine.dispatch.publisher_sequence("busy") == 2)
            back.command({"c": "logon", "name": "busy"})
            assert (await client.until("closing"))["code"] == "client_replaced"
        assert (await back.until("ack"))["sequence"] == 1
        back.close()


async def test_who_is_not_read_from_while_the_disk_stalls_is_not_called_silent(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        client, back = await RawClient.open(broker), await RawClient.open(broker)
        client.command({"c": "logon", "name": "busy", "heartbeat_ms": 100})
        await client.until("processed")
        other = await RawClient.connect(broker, "other")
        with stalled_disk(broker):
            await other.publish("t", [b"1"], 1)
            await until(lambda: broker.engine.dispatch.publisher_sequence("other") == 1)
            back.command({"c": "logon", "name": "other"})
            assert (await other.until("closing"))["code"] == "client_replaced"
            client.write(b"".join(map(publish, range(2 * MOST_UNCOMMITTED))))
            await until(
                lambda: broker.engine.roster.clients["busy"].publishing.uncommitted == MOST_UNCOMMITTED
            )
            held = [one for one in broker.engine.roster if not one.listened_to]
            for connection in held:
                connection.heard_at -= 60_000
            broker.engine.tick()
            assert len(held) == 2 and not any(one.closed for one in held)
        assert (await back.until("ack"))["sequence"] == 1
        client.write(flush("all"))
        assert (await client.until("completed"))["id"] == "all"
        broker.engine.roster.clients["busy"].heard_at -= 60_000
        broker.engine.tick()
        assert (await client.until("closing"))["code"] == "heartbeat_timeout"
        back.close()
