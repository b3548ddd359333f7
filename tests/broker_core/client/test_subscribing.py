"""Subscribing through a connection: live, replay, MOST_RECENT, gaps, back-pressure, errors and lost
connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_core.client import (
    EPOCH,
    MOST_RECENT,
    NOW,
    AsyncClient,
    FileBookmarkStore,
    MemoryBookmarkStore,
    Message,
    ReconnectPolicy,
)
from broker_core.errors import ClientError, OperatorError
from broker_core.protocols import commands, replies
from broker_core.protocols.native import encode_command
from tests.broker_core.client.fake_broker import INSTANCE, FakeBroker

pytestmark = pytest.mark.asyncio
QUICK = ReconnectPolicy(first_delay=0.001, longest_delay=0.01)


def client(broker: FakeBroker, name: str = "s", **options: object) -> AsyncClient:
    return AsyncClient(broker.address, name, reconnect=QUICK, **options)  # type: ignore[arg-type]


async def publish(broker: FakeBroker, *bodies: str, topic: str = "a") -> None:
    async with client(broker, "publisher") as publisher:
        await publisher.publish_many(topic, bodies)
        await publisher.flush()


async def take(messages: AsyncIterator[Message], number: int) -> list[Message]:
    return [await anext(messages) for _ in range(number)]


def subscribes(broker: FakeBroker) -> list[commands.Subscribe]:
    return [command for command in broker.commands if isinstance(command, commands.Subscribe)]


async def test_messages_carry_topic_body_and_bookmark(broker: FakeBroker) -> None:
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a")
        await publish(broker, '{"x": 1}', "text")
        first, second = await take(aiter(subscription), 2)
        assert (first.topic, first.data, first.bookmark) == ("a", {"x": 1}, f"{INSTANCE}|1|")
        assert (second.text, second.sequence, second.publisher_sequence) == ("text", 2, 2)


async def test_batches_come_as_they_were_published(broker: FakeBroker) -> None:
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a")
        await publish(broker, *map(str, range(50)))
        batch = await anext(subscription.batches())
        assert (batch.count, batch.first_sequence) == (50, 1)


async def test_a_reader_that_stops_within_a_batch_resumes_at_the_next_message(broker: FakeBroker) -> None:
    await publish(broker, "1", "2", "3")
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=EPOCH)
        async for message in subscription:
            assert message.body == b"1"
            break
        assert (await anext(aiter(subscription))).body == b"2"
        assert [message.body async for message in subscription.messages(until_completed=True)] == [b"3"]
        await publish(broker, "4", "5")
        assert (await anext(aiter(subscription))).body == b"4"
        assert [message async for message in subscription.messages(until_completed=True)] == [], (
            "that is live"
        )
        assert (await anext(aiter(subscription))).body == b"5"


async def test_two_who_read_one_subscription_share_its_messages(broker: FakeBroker) -> None:
    await publish(broker, "1", "2", "3")
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=EPOCH)
        one, other = aiter(subscription), aiter(subscription)
        first = await take(one, 2)
        await publish(broker, "4")
        rest = await take(other, 2)
        assert [message.body for message in (*first, *rest)] == [b"1", b"2", b"3", b"4"]


async def test_a_replay_ends_with_completed_and_goes_on_live(broker: FakeBroker) -> None:
    await publish(broker, "1", "2")
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=EPOCH)
        replayed = [message.body async for message in subscription.messages(until_completed=True)]
        assert replayed == [b"1", b"2"]
        assert subscription.completed.is_set()
        await publish(broker, "3")
        assert (await anext(aiter(subscription))).body == b"3"


async def test_after_a_lost_connection_a_bookmark_subscription_misses_and_repeats_nothing(
    broker: FakeBroker,
) -> None:
    await publish(broker, "1", "2")
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=EPOCH)
        await asyncio.wait_for(subscription.completed.wait(), 5)
        for peer in [peer for peer in broker.peers if peer.name == "s"]:
            peer.close()
            broker.peers.remove(peer)
        await publish(broker, "3", "4")  # during the outage, or just after: either way once
        messages = aiter(subscription)
        assert [message.body for message in await take(messages, 4)] == [b"1", b"2", b"3", b"4"]
        assert subscribes(broker)[-1].bookmark == f"{INSTANCE}|2|"


async def test_a_live_subscription_comes_back_live(broker: FakeBroker) -> None:
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a")
        broker.drop()
        await broker.until(lambda: len(subscribes(broker)) == 2)
        assert subscribes(broker)[-1].bookmark is None
        await publish(broker, "1")
        assert (await anext(aiter(subscription))).body == b"1"


async def test_now_resumes_where_it_was_when_the_broker_said_where_that_is(broker: FakeBroker) -> None:
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=NOW)
        subscription.on_accepted(f"{INSTANCE}|41|")
        broker.drop()
        await broker.until(lambda: len(subscribes(broker)) == 2)
        assert subscribes(broker)[-1].bookmark == f"{INSTANCE}|41|"


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_most_recent_goes_on_after_what_was_done(broker: FakeBroker, tmp_path: Path, kind: str) -> None:
    await publish(broker, "1", "2", "3", "4")
    memory = MemoryBookmarkStore()

    def store() -> MemoryBookmarkStore:
        return memory if kind == "memory" else FileBookmarkStore(tmp_path / "marks")

    async with client(broker, bookmark_store=store()) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=MOST_RECENT)
        one, two, _, four = await take(aiter(subscription), 4)
        for message in (four, one, two):  # out of order, and the third never
            subscription.done(message)
    async with client(broker, bookmark_store=store()) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=MOST_RECENT)
        batch = await anext(subscription.batches())
        assert batch.bodies() == [b"3"], "what was done after it is left out"
        subscription.done(batch)
    async with client(broker, bookmark_store=store()) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=MOST_RECENT)
        assert [message async for message in subscription.messages(until_completed=True)] == []


async def test_most_recent_without_a_store_is_refused(broker: FakeBroker) -> None:
    async with client(broker) as subscriber:
        with pytest.raises(OperatorError) as caught:
            await subscriber.subscribe("a", bookmark=MOST_RECENT)
        assert caught.value.code == "no_bookmark_store"


async def test_a_refused_subscription_raises_and_can_be_tried_again(broker: FakeBroker) -> None:
    async with client(broker) as subscriber:
        with pytest.raises(ClientError) as caught:
            await subscriber.subscribe("a", filter="bad", id="s1")
        assert (caught.value.code, caught.value.details) == ("bad_filter", {"column": 1})
        await subscriber.subscribe("a", filter="/good = 1", id="s1")
        with pytest.raises(OperatorError):
            await subscriber.subscribe("a", id="s1")


async def test_a_subscription_refused_after_a_reconnect_ends_with_the_error(broker: FakeBroker) -> None:
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a", id="s1")
        error = ClientError("bookmark_gone", "It is gone.", "Start over.")
        broker.peers[0].reply(replies.error_reply(error, of="subscribe", id="s1"))
        with pytest.raises(ClientError) as caught:
            await anext(aiter(subscription))
        assert caught.value.code == "bookmark_gone"


async def test_a_gap_is_reported_with_its_interval(broker: FakeBroker) -> None:
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a", id="s1")
        broker.peers[0].reply(replies.GapNotice(id="s1", first="i|1|", last="i|9|", why="removed"))
        await publish(broker, "1")
        await anext(aiter(subscription))
        assert [(gap.first, gap.last, gap.why) for gap in subscription.gaps] == [("i|1|", "i|9|", "removed")]


async def test_closing_a_subscription_ends_it_after_what_waits(broker: FakeBroker) -> None:
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=EPOCH)
        await publish(broker, "1", "2")
        await broker.until(lambda: len(broker.log) == 1)
        first = await anext(aiter(subscription))
        await subscription.close()
        assert first.body == b"1"
        assert [message.body async for message in subscription] == [b"2"]
        await broker.until(lambda: isinstance(broker.commands[-1], commands.Unsubscribe))
        await publish(broker, "3")


async def test_what_an_application_does_not_take_stays_at_the_broker_and_comes_when_it_does(
    broker: FakeBroker,
) -> None:
    number, body = 200, "x" * 20_000
    async with client(broker, max_unread_bytes=100_000) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=EPOCH)
        for _ in range(number):
            await publish(broker, body)
        await broker.until(lambda: len(broker.log) == number)
        first = await anext(aiter(subscription))
        assert subscription._credit.unread_bytes < 100_000 + 30_000
        assert len(await take(aiter(subscription), number - 1)) == number - 1
        assert first.body == body.encode() and subscription._credit.unread_bytes == 0


async def test_a_subscription_that_nobody_reads_holds_up_neither_others_nor_acknowledgements(
    broker: FakeBroker,
) -> None:
    async with client(broker, max_unread_bytes=100_000) as both:
        unread = await both.subscribe("a", bookmark=EPOCH)
        other = await both.subscribe("b", bookmark=EPOCH)
        for _ in range(50):
            await both.publish("a", "x" * 20_000)
            await both.flush()
        await both.publish("b", "1")
        await both.flush()
        assert [message.body for message in await take(aiter(other), 1)] == [b"1"]
        waits = unread.received_messages
        assert 0 < waits < 50 and unread._credit.unread_bytes < 100_000 + 30_000
        await unread.close()
        assert len([message async for message in unread]) == waits, "what has come can still be read"


async def test_a_delivery_for_a_stream_that_never_was_is_damage_and_comes_again(broker: FakeBroker) -> None:
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=EPOCH)
        (peer,) = [one for one in broker.peers if one.streams]
        peer.streams["lost"], peer.room[0x8181] = (0x8181, "a"), 1_000_000
        del peer.streams[subscription.id]  # the header of what comes next is garbled
        await publish(broker, "1")
        assert [message.body for message in await take(aiter(subscription), 1)] == [b"1"]
        assert subscriber.connections == 2


async def test_a_damaged_delivery_is_not_handed_out_and_comes_again(broker: FakeBroker) -> None:
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=EPOCH)
        peer, original = broker.peers[0], broker.peers[0].write

        def damage(data: bytes) -> None:
            original(data[:-1] + bytes([data[-1] ^ 1]) if len(data) > 150 else data)

        peer.write = damage  # type: ignore[method-assign]
        await publish(broker, "x" * 200)
        assert (await anext(aiter(subscription))).body == b"x" * 200
        assert subscriber.connections == 2


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
async def test_what_comes_behind_damage_is_not_handed_out_before_it(broker: FakeBroker, kind: str) -> None:
    await broker.start_websocket()
    address = broker.address if kind == "tcp" else broker.ws_address
    async with AsyncClient(address, "s", reconnect=QUICK) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=EPOCH)
        peer, original, kept = broker.peers[0], broker.peers[0].write, list[bytes]()

        def damage(data: bytes) -> None:
            kept.append(data)
            if len(kept) == 2:  # together, as one read of the client's
                original(kept[0][:-1] + bytes([kept[0][-1] ^ 1]))
                original(kept[1])

        peer.write = damage  # type: ignore[method-assign]
        await publish(broker, "1")
        await publish(broker, "2")
        async with asyncio.timeout(20):
            assert [message.body for message in await take(aiter(subscription), 2)] == [b"1", b"2"]
        assert subscriber.connections == 2


async def test_what_is_read_together_with_word_of_damage_is_not_handed_out(broker: FakeBroker) -> None:
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=EPOCH)
        peer, original = broker.peers[0], broker.peers[0].write
        peer.write = lambda data: None  # type: ignore[method-assign]
        await publish(broker, "1")
        refused = encode_command(replies.ErrorReply(code="bad_command", message="The command isn't JSON."))
        peer.write = lambda data: original(refused + data)  # type: ignore[method-assign]
        await publish(broker, "2")
        async with asyncio.timeout(20):
            assert [message.body for message in await take(aiter(subscription), 2)] == [b"1", b"2"]
        assert subscriber.connections == 2


@pytest.mark.parametrize(
    ("options", "resumes_after"), [({}, 3), ({"conflation": "1s", "conflation_key": "/id"}, 1)]
)
async def test_a_resume_point_takes_nothing_back_that_was_received_in_order(
    broker: FakeBroker, options: dict[str, str], resumes_after: int
) -> None:
    """The broker's resume point covers records known to have arrived; records in flight arrive before it."""
    async with client(broker) as subscriber:
        subscription = await subscriber.subscribe("a", bookmark=EPOCH, **options)  # type: ignore[arg-type]
        await publish(broker, "1", "2", "3")
        assert [message.sequence for message in await take(aiter(subscription), 3)] == [1, 2, 3]
        said = replies.Ack(ack="persisted", of="subscribe", id=subscription.id, bookmark=f"{INSTANCE}|1|")
        for peer in broker.peers:
            peer.reply(said)
        await subscriber.publish("other", b"x")
        await subscriber.flush()  # its answer comes behind
        broker.drop()
        await broker.until(lambda: len(subscribes(broker)) == 2)
        assert subscribes(broker)[1].bookmark == f"{INSTANCE}|{resumes_after}|"
