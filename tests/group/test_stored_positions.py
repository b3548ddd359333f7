"""State stored for a disconnected client is available at every member: one history across the move."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from broker_core.client import EPOCH, AsyncClient
from broker_core.connections.resume import TokenSubscription
from broker_core.replay.positions.file import DurableSubscriptionRecord, ManagedReplayRecord
from tests.group.test_one_log import publish
from tests.support.brokers import until
from tests.support.groups import RunningMember, running_members, start_member
from tests.support.nats_servers import running_nats_servers


def durable_at(member: RunningMember) -> DurableSubscriptionRecord | None:
    return member.broker.engine.position_store.durables.get(("reader", "orders"))


def replay_at(member: RunningMember) -> ManagedReplayRecord | None:
    return member.broker.engine.position_store.replays.get("night")


async def take(member: RunningMember, number: int, acknowledged: int, **options: Any) -> list[int]:
    """Read `number` records as the moving client, which acknowledges some of them before it disconnects."""
    had = list[int]()
    async with asyncio.timeout(60), AsyncClient(member.address, "reader") as client:
        subscription = await client.subscribe("t", bookmark=EPOCH, ack="client", **options)
        async for message in subscription:
            had.append(message.data["n"])
            if len(had) == acknowledged:
                subscription.ack(message)
            if len(had) == number:
                break
        await asyncio.sleep(0)  # acknowledgements are sent once a turn
    return had


def is_behind(member: RunningMember, position: int, number: int) -> bool:
    """Return whether a position is after the record of a number, and not after the next."""
    return record_of(member, number) < position <= record_of(member, number + 1)


async def wait_position_shared(members: list[RunningMember], number: int) -> None:
    """Wait until all members know the position of the durable subscription."""
    await until(
        lambda: all(
            (one := durable_at(member)) is not None and is_behind(members[0], one.position, number)
            for member in members
        )
    )


async def test_a_durable_subscriber_that_moves_gets_everything_and_again_what_it_hadnt_acknowledged_alone(
    tmp_path: Path,
) -> None:
    async with running_nats_servers(tmp_path, 1) as engines, AsyncExitStack() as there:
        a, b = await there.enter_async_context(running_members(tmp_path, engines.urls, "a", "b"))
        await publish(a.address, "p", 1, 100)
        first = await take(a, 40, 30, durable="orders")
        await wait_position_shared([a, b], 30)
        second = await take(b, 50, 50, durable="orders")
        assert (first[0], first[-1], second[0], second[-1]) == (1, 40, 31, 80)
        await wait_position_shared([a, b], 80)
        # One that was away learns it of the log, and one that has lost the file of its own journal.
        c = await start_member(tmp_path, "c", engines.urls)
        await wait_position_shared([a, c], 80)
        await c.stop()
        (tmp_path / "c" / "journal" / "group.kept.json").unlink()
        c = await start_member(tmp_path, "c", engines.urls)
        there.push_async_callback(c.stop)
        assert (one := durable_at(c)) is not None and is_behind(a, one.position, 80)
        await publish(b.address, "p", 101, 110)
        assert await take(c, 30, 30, durable="orders") == list(range(81, 111))
        # What is deleted anywhere is nowhere.
        async with AsyncClient(a.address, "reader") as client:
            subscription = await client.subscribe("t", durable="orders")
            await subscription.close(delete=True)
        await until(lambda: not any(durable_at(one) for one in (a, b, c)))


def record_of(member: RunningMember, number: int) -> int:
    """Return the sequence of the record with this number."""
    journal = member.journal
    for batch in journal.read(1, 1 << 24, journal.durable_sequence):
        for one in batch.records():
            if one.topic == "t" and one.publisher_sequence == number:
                return int(one.sequence)
    raise AssertionError(number)


async def test_a_managed_replay_and_a_resume_token_go_on_at_another_member(tmp_path: Path) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as (a, b):
            await publish(a.address, "p", 1, 100)
            await take(a, 40, 30, managed="night")
            await until(lambda: (one := replay_at(b)) is not None and is_behind(a, one.expires_from, 30))
            assert (await take(b, 70, 70, managed="night")) == list(range(31, 101))
            await until(lambda: (one := replay_at(a)) is not None and one.position > record_of(a, 100))
            token = a.broker.engine.services.tokens.issue("x", [TokenSubscription("s", "t", None, 7)], 1_000)
            assert b.broker.engine.services.tokens.verify(token, "x", 1_000) == [
                TokenSubscription("s", "t", None, 7)
            ]
