"""Slow STOMP clients get an ERROR with figures before they are closed, and can resume at their position."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from tests.support.brokers import address_of, running_broker, until
from tests.support.rules import policy_with, rule
from tests.support.stomp_client import StompClient, StompFrame, stomp_client, stomp_policy


async def closing_error(client: StompClient) -> StompFrame:
    """Return the ERROR that follows the messages in flight."""
    while True:
        frame = await client.read()
        if frame.command != "MESSAGE":
            assert frame.command == "ERROR", frame
            return frame


async def publish(broker: Broker, number: int, body: bytes = b"x") -> None:
    async with AsyncClient(address_of(broker), "writer") as writer:
        for _ in range(number):
            await writer.publish_many("t", [body])
        await writer.flush()


async def test_a_client_that_does_not_acknowledge_is_notified_and_resumes_at_the_bookmark(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, stomp_policy(policy_with(rule("disconnect")))) as broker:
        async with stomp_client(broker, client_id="slow") as client:
            await client.send_with_receipt(
                "SUBSCRIBE", id="s", destination="/topic/t", ack="client", prefetch_count=2
            )
            await publish(broker, 20)
            error = await closing_error(client)
            assert await asyncio.wait_for(client.reader.read(), 10) == b""
        assert error.headers["message"] == "slow_client_backlog"
        observed, limit = (float(error.headers[f"x-sluice-{name}"]) for name in ("observed", "limit"))
        assert observed > limit == 10 and error.headers["x-sluice-unit"] == "messages"
        assert int(error.headers["x-sluice-retry-after-ms"]) == 1_000
        assert json.loads(error.body)["decision"] == error.headers["x-sluice-decision"]
        assert int(error.headers["x-sluice-kept"]) + int(error.headers["x-sluice-lost"]) >= 10
        async with stomp_client(broker, client_id="slow") as client:
            bookmark = error.headers["x-sluice-resume-bookmark"]
            client.send("SUBSCRIBE", id="s", destination="/topic/t", x_sluice_bookmark=bookmark)
            found = [await client.read() for _ in range(20)]
            assert [int(one.headers["x-stream-offset"]) for one in found] == list(
                range(int(found[0].headers["x-stream-offset"]), int(found[0].headers["x-stream-offset"]) + 20)
            )
            token = error.headers["x-sluice-resume-token"]
            await client.send_with_receipt("UNSUBSCRIBE", id="s")
            client.send("SUBSCRIBE", id="s", destination="/topic/t", x_sluice_resume=token)
            assert (await client.read()).headers["x-stream-offset"] == found[0].headers["x-stream-offset"]


async def test_a_client_that_disconnects_after_the_error_counts_as_notified(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy(policy_with(rule("disconnect")))) as broker:
        async with stomp_client(broker, client_id="slow") as client:
            await client.send_with_receipt(
                "SUBSCRIBE", id="s", destination="/topic/t", ack="client", prefetch_count=2
            )
            await publish(broker, 20)
            await closing_error(client)
        await until(lambda: broker.engine.decisions.recent)
        assert broker.engine.decisions.recent[-1].told == "yes"


async def test_a_cancelled_subscription_ends_its_connection_with_the_figures(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy(policy_with(rule("cancel_subscription")))) as broker:
        async with stomp_client(broker, client_id="slow") as client:
            await client.send_with_receipt(
                "SUBSCRIBE", id="s", destination="/topic/t", ack="client", prefetch_count=2
            )
            await publish(broker, 20)
            error = await closing_error(client)
            assert error.headers["message"] == "slow_client_backlog"
            assert error.headers["x-sluice-subscription"] == "s"
            assert float(error.headers["x-sluice-observed"]) > float(error.headers["x-sluice-limit"])
            assert error.headers["x-sluice-resume-bookmark"].startswith("test-1|")
            assert await asyncio.wait_for(client.reader.read(), 10) == b""


async def test_a_refused_client_gets_a_retry_time_at_connect(tmp_path: Path) -> None:
    policy = stomp_policy(policy_with(rule("refuse", for_ms=60_000)))
    async with running_broker(tmp_path, policy) as broker:
        async with stomp_client(broker, client_id="slow") as client:
            await client.send_with_receipt(
                "SUBSCRIBE", id="s", destination="/topic/t", ack="client", prefetch_count=2
            )
            await publish(broker, 20)
            await closing_error(client)
        async with stomp_client(broker, "") as client:
            client.send("CONNECT", accept_version="1.2", client_id="slow")
            error = await client.read_error()
            assert error.headers["message"] == "name_refused"
            assert 0 < int(error.headers["x-sluice-retry-after-ms"]) <= 60_000


@pytest.mark.parametrize("prefetch", ["", "5"])
async def test_a_client_that_reads_nothing_is_offlined_and_gets_everything(
    tmp_path: Path, prefetch: str
) -> None:
    policy = stomp_policy(
        policy_with(pool={"message_memory_limit": 256 * 1024, "message_disk_limit": 64 * 1024 * 1024})
    )
    async with running_broker(tmp_path, policy) as broker:
        asked = {"ack": "client", "prefetch-count": prefetch} if prefetch else {}
        async with stomp_client(broker, client_id="slow") as client:
            await client.send_with_receipt("SUBSCRIBE", id="s", destination="/topic/t", **asked)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            backlog = broker.engine.roster.clients["slow"].backlog
            number = 0
            async with AsyncClient(address_of(broker), "writer") as writer:
                while backlog.spool is None:
                    await writer.publish_many("t", [b"%06d" % (number + n) + b"x" * 2_000 for n in range(50)])
                    await writer.flush()
                    number += 50
                    assert number < 50_000
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for expected in range(number):
                message = await client.read()
                assert int(message.body[:6]) == expected
                if prefetch:
                    client.send("ACK", id=message.headers["ack"])
            await until(lambda: backlog.spool is None)


async def test_a_stopped_reader_costs_its_neighbours_nothing_and_little_waits_below_its_outbox(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker, client_id="slow") as slow, stomp_client(broker) as quick:
            for client in (slow, quick):
                await client.send_with_receipt("SUBSCRIBE", id="s", destination="/topic/t")
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
            async with AsyncClient(address_of(broker), "writer") as writer:
                for _ in range(20):
                    await writer.publish_many("t", [b"x" * 500] * 1_000)
                await writer.flush()
            for _ in range(20_000):
                await quick.read()
            sink = broker.engine.roster.clients["slow"].sink
            waiting = broker.engine.roster.clients["slow"].backlog.nbytes
            below = sink._transport.get_write_buffer_size()  # type: ignore[attr-defined]
            assert waiting > 1024 * 1024 and below <= 128 * 1024
            slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(20_000):
                await slow.read()
            account = broker.engine.roster.clients["slow"].account
            await until(lambda: broker.engine.roster.clients["slow"].account.acknowledged.messages == 20_000)
            assert account.matched.messages == 20_000


async def test_both_ways_of_a_connection_that_goes_silent_are_noticed(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker, "") as client:
            client.send("CONNECT", accept_version="1.2", heart_beat="1,1")
            assert (await client.read()).headers["heart-beat"] == "1000,1000"
            beats = 0
            async with asyncio.timeout(30):
                while (line := await client.reader.readline()) == b"\n":
                    beats += 1
            assert beats >= 2
            assert line == b"ERROR\n"
            assert await client.reader.readline() == b"message:heartbeat_timeout\n"
