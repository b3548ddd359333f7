"""Pause, resume, rates, conflation and managed replays by the client library, with a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.client import AsyncClient, FileBookmarkStore, Subscription
from broker_core.errors import ClientError
from broker_core.protocols import commands, replies
from tests.broker_core.client.fake_broker import FakeBroker
from tests.support.brokers import address_of, running_broker, until


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        for first in range(0, 300, 30):
            await writer.publish_many(
                "a", [b'{"id":%d,"n":%d}' % (n % 3, n) for n in range(first, first + 30)]
            )
        await writer.flush()
        yield broker


async def take_batches(subscription: Subscription, number: int) -> list[int]:
    """Read whole batches until `number` messages are read."""
    sequences: list[int] = []
    async with asyncio.timeout(10):
        while len(sequences) < number:
            for batch, _ in await subscription.next_batches():
                sequences += batch.sequences().tolist()
    return sequences


async def test_subscriptions_are_paused_and_resumed_alone_and_together(broker: Broker) -> None:
    async with AsyncClient(address_of(broker), "reader") as client:
        one = await client.subscribe("a", bookmark="0", id="one", paused=True)
        two = await client.subscribe("a", bookmark="0", id="two", paused=True, filter="/id = 1")
        assert one.paused
        await client.resume([one, two])
        assert await take_batches(one, 300) == list(range(1, 301))
        assert await take_batches(two, 100) == list(range(2, 301, 3))
        await one.pause()
        await one.set_rate("2X", "1s")
        assert (one.paused, one.rate) == (True, "2X")
        with pytest.raises(ClientError) as refused:
            await one.set_rate("fast")
        assert (refused.value.code, one.rate) == ("bad_rate", "2X")


async def test_what_was_steered_holds_on_the_next_connection(broker: Broker) -> None:
    async with AsyncClient(address_of(broker), "reader") as client:
        subscription = await client.subscribe("a", bookmark="0", rate="200")
        firsts = await take_batches(subscription, 20)
        await subscription.pause()
        await subscription.set_rate(None)
        broker.engine.roster.clients["reader"].close("operator_disconnect", "a test")
        await until(lambda: client.connections == 2 and client.connected)
        await until(
            lambda: (
                "reader" in broker.engine.roster.clients
                and bool(broker.engine.roster.clients["reader"].subscriptions)
            )
        )
        (target,) = broker.engine.roster.clients["reader"].subscriptions.values()
        assert (target.cursor.is_paused, target.rate) == (True, None)
        await subscription.resume()
        rest = await take_batches(subscription, 300 - len(firsts))
        assert firsts + rest == list(range(1, 301))


async def test_a_managed_replay_goes_on_in_the_next_process(broker: Broker, tmp_path: Path) -> None:
    got: list[int] = []
    for _ in range(3):
        store = FileBookmarkStore(tmp_path / "marks")
        async with AsyncClient(address_of(broker), "auditor", bookmark_store=store) as client:
            subscription = await client.subscribe("a", bookmark="MOST_RECENT", managed="audit", id="audit")
            async with asyncio.timeout(10):
                async for message in subscription:
                    got.append(message.sequence)
                    subscription.done(message)
                    if len(got) % 100 == 0:
                        break
    assert got == list(range(1, 301))


async def test_a_cancelled_managed_replay_says_so_to_its_reader(broker: Broker) -> None:
    async with AsyncClient(address_of(broker), "reader") as client:
        subscription = await client.subscribe("a", bookmark="0", managed="audit", rate="50")
        await take_batches(subscription, 5)
        broker.engine.managed.cancel("audit")
        with pytest.raises(ClientError) as ended:
            await take_batches(subscription, 300)
        assert ended.value.code == "replay_cancelled"


async def test_a_conflated_subscription_gets_the_last_of_each_key(broker: Broker) -> None:
    async with AsyncClient(address_of(broker), "reader") as client:
        subscription = await client.subscribe("a", bookmark="0", conflation="24h", conflation_key="/id")
        last = [message.data["n"] async for message in subscription.messages(until_completed=True)]
        assert last == [297, 298, 299]


class Answers:
    """A client whose subscription commands the test answers itself, in order."""

    def __init__(self, fake: FakeBroker, client: AsyncClient) -> None:
        self._fake = fake
        self.client = client

    async def sent(self, number: int) -> None:
        """Wait until the broker has received so many commands."""
        kinds = (commands.PauseSubscriptions, commands.ResumeSubscriptions, commands.SetRate)
        async with asyncio.timeout(30):
            await self._fake.until(
                lambda: sum(isinstance(one, kinds) for one in self._fake.commands) == number
            )

    async def accept(self, tag: str, *ids: str) -> None:
        for id in ids:
            self._fake.peers[-1].reply(replies.Ack(ack="processed", of=tag, id=id))
        await self._flushed()

    async def reject(self, tag: str) -> None:
        error = ClientError("not_steerable", "It can't be steered.")
        self._fake.peers[-1].reply(replies.error_reply(error, of=tag))
        await self._flushed()

    async def _flushed(self) -> None:
        """Wait until the client has read all replies so far."""
        await self.client.publish("scratch", b"answered behind them")
        await self.client.flush(30)


@pytest.fixture
async def answers() -> AsyncIterator[Answers]:
    fake = FakeBroker()
    await fake.start()
    async with AsyncClient(fake.address, "me", request_timeout=30) as client:
        yield Answers(fake, client)
    await fake.stop()


async def timed_out(call: Coroutine[object, object, None]) -> None:
    """Give a call up, as its timeout does."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await call


async def test_a_late_answer_does_not_count_for_the_next_request(answers: Answers) -> None:
    one = await answers.client.subscribe("a", id="one")
    await timed_out(one.pause())
    assert not one.paused, "a request that nobody waits for changes nothing"
    again = asyncio.create_task(one.pause())
    await answers.sent(2)
    await answers.accept("pause", "one")
    assert not again.done(), "that was the first one's answer"
    await answers.accept("pause", "one")
    await again
    assert one.paused


async def test_a_late_rejection_does_not_fail_the_next_request(answers: Answers) -> None:
    one = await answers.client.subscribe("a", id="one")
    await timed_out(one.set_rate("10"))
    again = asyncio.create_task(one.set_rate("20"))
    await answers.sent(2)
    await answers.reject("rate")
    await answers.accept("rate", "one")
    await again
    assert one.rate == "20"


async def test_a_late_acceptance_stores_the_options_unless_a_later_request_overrides_them(
    answers: Answers,
) -> None:
    one = await answers.client.subscribe("a", id="one")
    two = await answers.client.subscribe("b", id="two")
    await timed_out(answers.client.set_rate([one, two], "10"))
    assert (one.rate, two.rate) == (None, None)
    later = asyncio.create_task(one.set_rate("20"))
    await answers.sent(2)
    await answers.accept("rate", "one", "two")
    assert (one.rate, two.rate) == ("20", "10")
    await answers.reject("rate")
    with pytest.raises(ClientError):
        await later
    assert (one.rate, two.rate) == ("10", "10")


async def test_of_two_requests_at_once_a_rejected_first_one_leaves_the_second(answers: Answers) -> None:
    one = await answers.client.subscribe("a", id="one")
    first = asyncio.create_task(one.set_rate("10"))
    await answers.sent(1)
    second = asyncio.create_task(one.set_rate("20"))
    await answers.sent(2)
    await answers.reject("rate")
    with pytest.raises(ClientError):
        await first
    assert one.rate == "20"
    await answers.accept("rate", "one")
    await second
    assert one.rate == "20"


async def test_a_subscription_that_is_named_twice_is_restored_too(answers: Answers) -> None:
    one = await answers.client.subscribe("a", id="one")
    request = asyncio.create_task(answers.client.pause([one, one]))
    await answers.sent(1)
    await answers.reject("pause")
    with pytest.raises(ClientError):
        await request
    assert not one.paused


async def test_a_request_without_an_answer_in_time_is_not_repeated_by_the_next_connection(
    answers: Answers,
) -> None:
    one = await answers.client.subscribe("a", id="one")
    await timed_out(one.pause())
    answers._fake.drop()
    await until(lambda: answers.client.connections == 2 and answers.client.connected)
    async with asyncio.timeout(30):
        await answers._fake.until(
            lambda: sum(isinstance(command, commands.Subscribe) for command in answers._fake.commands) == 2
        )
    last = [command for command in answers._fake.commands if isinstance(command, commands.Subscribe)][-1]
    assert not last.paused
    again = asyncio.create_task(one.pause())
    await answers.sent(2)
    await answers.accept("pause", "one")
    await again
