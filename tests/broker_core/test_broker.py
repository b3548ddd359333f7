"""Publish, journal, replay and slow clients through a real broker over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.client import AsyncClient
from broker_core.config import PolicyDocument, TransportSettings
from broker_core.errors import ClientError, OperatorError
from tests.support.brokers import address_of, ask, running_broker, tcp_policy, until
from tests.support.stalled import StalledSubscriber


async def take(subscription: object, number: int, seconds: float = 20.0) -> list[bytes]:
    bodies: list[bytes] = []
    async with asyncio.timeout(seconds):
        async for batch in subscription.batches():  # type: ignore[attr-defined]
            bodies += batch.bodies()
            if len(bodies) >= number:
                return bodies
    raise AssertionError(f"the subscription ended after {len(bodies)} records")


def numbered_bodies(first: int, last: int) -> list[bytes]:
    return [b'{"n":%d}' % number for number in range(first, last)]


async def test_published_records_reach_a_live_subscriber_once_and_in_order(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        async with (
            AsyncClient(address_of(broker), "reader") as reader,
            AsyncClient(address_of(broker), "writer") as writer,
        ):
            subscription = await reader.subscribe("orders.>")
            for start in range(0, 1_000, 100):
                await writer.publish_many("orders.eu", numbered_bodies(start, start + 100))
            await writer.flush()
            assert await take(subscription, 1_000) == numbered_bodies(0, 1_000)


async def test_a_replay_from_epoch_goes_over_into_live_without_gap_or_repeat(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        await writer.publish_many("a", numbered_bodies(0, 500))
        await writer.flush()
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("a", bookmark="0")
            await writer.publish_many("a", numbered_bodies(500, 1_000))
            assert await take(subscription, 1_000) == numbered_bodies(0, 1_000)


async def test_a_filter_delivers_the_matching_records_alone(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        async with (
            AsyncClient(address_of(broker), "reader") as reader,
            AsyncClient(address_of(broker), "writer") as writer,
        ):
            live = await reader.subscribe("a", filter="/n % 10 = 3")
            await writer.publish_many("a", numbered_bodies(0, 100))
            wanted = [b'{"n":%d}' % n for n in range(3, 100, 10)]
            assert await take(live, 10) == wanted
            replayed = await reader.subscribe("a", filter="/n % 10 = 3", bookmark="0", id="replay")
            assert await take(replayed, 10) == wanted


async def test_a_bad_filter_is_refused_with_its_column_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        with pytest.raises(ClientError) as caught:
            await reader.subscribe("a", filter="/n = = 3")
        assert caught.value.code == "bad_filter"
        assert caught.value.details["column"] == 6
        await reader.subscribe("a", filter="/n = 3")


async def test_a_replay_of_a_topic_that_is_not_journaled_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        with pytest.raises(ClientError) as caught:
            await reader.subscribe("scratch.a", bookmark="0")
        assert caught.value.code == "not_journaled"


async def test_topics_that_are_not_journaled_are_delivered_live_and_not_replayed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        async with (
            AsyncClient(address_of(broker), "reader") as reader,
            AsyncClient(address_of(broker), "writer") as writer,
        ):
            live = await reader.subscribe("scratch.a")
            before = broker.engine.journal.next_sequence
            await writer.publish_many("scratch.a", numbered_bodies(0, 10))
            assert await take(live, 10) == numbered_bodies(0, 10)
            assert broker.engine.journal.next_sequence == before


async def test_republished_messages_are_acknowledged_and_stored_once_also_after_a_restart(
    tmp_path: Path,
) -> None:
    from tests.support.raw import RawClient

    for attempt in range(2):
        async with running_broker(tmp_path) as broker:
            raw = await RawClient.connect(broker, "writer", session=7)
            await raw.publish("a", numbered_bodies(0, 10), first=1)
            assert (await raw.read_until("persisted"))["sequence"] == 10
            await raw.publish("a", numbered_bodies(5, 15), first=6)
            assert (await raw.read_until("persisted"))["sequence"] == 15
            raw.close()
            async with AsyncClient(address_of(broker), "reader") as reader:
                subscription = await reader.subscribe("a", bookmark="0")
                assert await take(subscription, 15) == numbered_bodies(0, 15), f"attempt {attempt}"


async def test_a_second_client_of_a_name_replaces_the_first_with_a_notice(tmp_path: Path) -> None:
    from tests.support.raw import RawClient

    async with running_broker(tmp_path) as broker:
        first = await RawClient.connect(broker, "twin")
        await RawClient.connect(broker, "twin")
        assert (await first.read_until("closing"))["code"] == "client_replaced"


async def test_a_client_that_stops_reading_is_offlined_by_reference_and_gets_everything_when_it_reads(
    tmp_path: Path,
) -> None:
    policy = tcp_policy(message_memory_limit=2_000_000)
    async with (
        running_broker(tmp_path, policy) as broker,
        AsyncClient(address_of(broker), "writer") as writer,
    ):
        slow = await StalledSubscriber.connect(broker, "slow", "a")
        body = b"x" * 1_000
        for start in range(0, 20_000, 200):
            await writer.publish_many("a", [b"%08d" % n + body for n in range(start, start + 200)])
        await writer.flush()
        connection = broker.engine.roster.clients["slow"]
        await until(lambda: connection.backlog.state.value == "offlined")
        client = await ask(broker, "client", name="slow")
        assert client["delivery"] == "offlined"
        assert client["outbox_bytes"] == 0
        assert client["spool_messages"] > 5_000
        assert client["spool_bytes"] < 100 * 64, "some 40 bytes a batch, not the batches"
        decisions = await ask(broker, "decisions")
        assert decisions[-1]["client"] == "slow"
        numbers = await slow.read_numbers(20_000)
        assert numbers == list(range(20_000))
        await until(lambda: connection.backlog.state.value == "live")
        assert not list((tmp_path / "spool").iterdir())


async def test_an_offlined_client_over_its_disk_share_gets_a_notice_and_is_disconnected(
    tmp_path: Path,
) -> None:
    policy = tcp_policy(message_memory_limit=500_000, message_disk_limit=2_000_000)
    async with (
        running_broker(tmp_path, policy) as broker,
        AsyncClient(address_of(broker), "writer") as writer,
    ):
        slow = await StalledSubscriber.connect(broker, "slow", "scratch.a")
        for start in range(0, 12_000, 200):
            await writer.publish_many(
                "scratch.a", [b"%08d" % n + b"x" * 1_000 for n in range(start, start + 200)]
            )
        await until(lambda: "slow" not in broker.engine.roster.clients)
        # The record says whether the client was told: it comes with the answer, or at the deadline.
        await until(lambda: not broker.engine.roster.closing)
        decision = (await ask(broker, "decisions"))[-1]
        assert decision["reason"] == "slow_client_capacity"
        assert decision["observed"] > decision["limit"] == 1_000_000
        notices = await slow.read_commands()
        assert [n["code"] for n in notices if n["c"] in ("notice", "closing")] == ["slow_client_capacity"] * 2
        assert not list((tmp_path / "spool").iterdir())


async def test_a_lower_limit_acts_without_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        slow = await StalledSubscriber.connect(broker, "slow", "a")
        for start in range(0, 12_000, 200):
            await writer.publish_many("a", [b"%08d" % 0 + b"x" * 1_000] * 200)
        await writer.flush()
        assert broker.engine.roster.clients["slow"].backlog.state.value == "live"
        changed = tcp_policy(message_memory_limit=1_000_000).to_dict() | {"revision": 2}
        changed["transports"][0]["port"] = 0
        assert await ask(broker, "apply", policy=changed) == {"revision": 2, "withdrawn": 0}
        assert broker.engine.roster.clients["slow"].backlog.state.value == "offlined"
        assert await slow.read_numbers(12_000) == [0] * 12_000


async def test_first_command_must_be_a_logon(tmp_path: Path) -> None:
    from tests.support.raw import RawClient

    async with running_broker(tmp_path) as broker:
        raw = await RawClient.open(broker)
        raw.send_command({"c": "subscribe", "id": "s", "topic": "a"})
        assert (await raw.read_until("error"))["code"] == "not_logged_on"
        assert (await raw.read_until("closing"))["code"] == "not_logged_on"


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0" * 64])
async def test_malformed_frames_are_answered_with_an_error_and_closed(tmp_path: Path, garbage: bytes) -> None:
    from tests.support.raw import RawClient

    async with running_broker(tmp_path) as broker:
        raw = await RawClient.connect(broker, "bad")
        raw.write(garbage)
        assert (await raw.read_until("error"))["code"] in ("bad_frame", "frame_too_large")


async def test_own_events_are_journaled_for_the_pipeline(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        subscription = await reader.subscribe("$SLUICE.clients", bookmark="0")
        event = json.loads((await take(subscription, 1))[0])
        assert (event["client"], event["event"], event["transport"]) == ("reader", "connect", "tcp")


async def test_failing_statistics_end_neither_heartbeats_nor_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.raw import RawClient

    async def fail() -> None:
        raise RuntimeError("no statistics")

    async with running_broker(tmp_path) as broker:
        monkeypatch.setattr(broker.statistics, "sample_second", fail)
        raw = await RawClient.open(broker)
        raw.send_command({"c": "logon", "name": "patient", "heartbeat_ms": 1_000})
        raw.send_command({"c": "subscribe", "id": "s", "topic": "t", "lease_ms": 1_000})
        assert await raw.read_until("heartbeat")
        assert (await raw.read_until("cancelled"))["id"] == "s"


async def test_a_policy_whose_transport_this_machine_cannot_open_shuts_nobody_out(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    policy = replace(tcp_policy(), transports=(TransportSettings("tcp", "tcp", port),))

    def moved_to(host: str) -> PolicyDocument:
        return replace(policy, revision=2, transports=(TransportSettings("tcp", "tcp", port, host),))

    async with (
        running_broker(tmp_path, policy) as broker,
        AsyncClient(address_of(broker), "writer") as writer,
    ):
        with pytest.raises(OperatorError) as elsewhere:
            await broker.apply(
                moved_to("192.0.2.1")
            )  # another machine's address, as a policy of several members may have
        assert elsewhere.value.code == "port_taken" and "0.0.0.0" in elsewhere.value.fix
        told = broker.statistics.collect_status().refused
        assert told is not None and (told.revision, told.code) == (2, "port_taken")
        assert (told.message, told.fix) == (elsewhere.value.sentence, elsewhere.value.fix)
        await writer.publish("a", b"1")
        await writer.flush()
        assert writer.connections == 1

        with socket.create_server(("127.0.0.2", port)), pytest.raises(OperatorError, match="port_taken"):
            await broker.apply(moved_to("0.0.0.0"))  # can be tried only when its own former listener is gone
        async with AsyncClient(address_of(broker), "other") as other:
            await other.publish("a", b"2")
            await other.flush()
        await broker.apply(moved_to("0.0.0.0"))
        assert broker.statistics.collect_status().refused is None
        assert broker.statistics.transports[0]["host"] == "0.0.0.0"
