"""Clients that return from their spool: in order, with little in memory, live when they have caught up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.delivery import spooled_backlog as module
from broker_core.delivery.lifecycle import ClientState
from tests.support.brokers import address_of, running_broker, tcp_policy, until
from tests.support.stalled import StalledSubscriber

NUMBER = 20_000
PATIENCE_S = 0.05


async def publish(broker: Broker, topic: str, first: int, last: int) -> None:
    async with AsyncClient(address_of(broker), f"writer-{first}") as writer:
        for start in range(first, last, 200):
            await writer.publish_many(topic, [b"%08d" % n + b"x" * 1_000 for n in range(start, start + 200)])
        await writer.flush()


@pytest.mark.parametrize("topic", ["a", "scratch.a"], ids=["by reference", "by copy"])
async def test_one_that_stops_again_and_again_gets_everything_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    monkeypatch.setattr(module, "STALLED_AFTER_S", PATIENCE_S)
    async with running_broker(tmp_path, tcp_policy(message_memory_limit=2_000_000)) as broker:
        slow = await StalledSubscriber.connect(broker, "slow", topic)
        await publish(broker, topic, 0, NUMBER)
        backlog = broker.engine.roster.clients["slow"].backlog
        await until(lambda: backlog.state is ClientState.OFFLINED)
        numbers: list[int] = []
        while len(numbers) < NUMBER // 2:
            numbers += await slow.read_numbers(1_000)
            await until(lambda: backlog.state is ClientState.OFFLINED)
            assert backlog.messages == 0, "what it wasn't sent waits on disk again"
            assert broker.engine.share.replays == 0
        await publish(broker, topic, NUMBER, NUMBER + 1_000)
        numbers += await slow.read_numbers(NUMBER + 1_000 - len(numbers))
        assert numbers == list(range(NUMBER + 1_000))
        await until(lambda: backlog.state is ClientState.LIVE)
        assert not list((tmp_path / "spool").iterdir())
        assert not any(pin.kind == "spool" for pin in broker.engine.journal.pins())


async def test_one_catches_up_while_more_comes_all_the_time(tmp_path: Path) -> None:
    async with running_broker(tmp_path, tcp_policy(message_memory_limit=2_000_000)) as broker:
        slow = await StalledSubscriber.connect(broker, "slow", "a")
        await publish(broker, "a", 0, NUMBER)
        backlog = broker.engine.roster.clients["slow"].backlog
        await until(lambda: backlog.state is ClientState.OFFLINED)
        came = 0

        async def go_on() -> None:
            nonlocal came
            async with AsyncClient(address_of(broker), "writer") as writer:
                while backlog.state is not ClientState.LIVE:
                    await writer.publish_many(
                        "a", [b"%08d" % n + b"x" * 100 for n in range(NUMBER + came, NUMBER + came + 10)]
                    )
                    came += 10
                    await asyncio.sleep(0.005)
                await writer.flush()

        more = asyncio.create_task(go_on())
        numbers = await slow.read_numbers(NUMBER)
        while not more.done():
            numbers += await slow.read_numbers(1) if len(numbers) < NUMBER + came else []
            await asyncio.sleep(0)
        numbers += (
            await slow.read_numbers(NUMBER + came - len(numbers)) if len(numbers) < NUMBER + came else []
        )
        assert numbers == list(range(NUMBER + came)) and came


async def test_one_that_is_cut_off_far_into_its_backlog_goes_on_from_there(tmp_path: Path) -> None:
    async with running_broker(tmp_path, tcp_policy(message_memory_limit=2_000_000)) as broker:
        slow = await StalledSubscriber.connect(broker, "slow", "a")
        await publish(broker, "a", 0, NUMBER)
        backlog = broker.engine.roster.clients["slow"].backlog
        await until(lambda: backlog.state is ClientState.OFFLINED)
        numbers = await slow.read_numbers(2 * NUMBER // 3)
        assert backlog.state is not ClientState.LIVE
        (target,) = broker.engine.roster.clients["slow"].subscriptions.values()
        needed = broker.engine.subscriptions.position(target)
        # Nothing that it hasn't got is left out, and it isn't sent back to the beginning of its time on disk.
        assert numbers[-1] - 4_000 < needed <= numbers[-1] + 2
