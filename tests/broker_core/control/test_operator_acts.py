"""Operators' actions on connected clients, against a running broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.broker_core.engine.test_enforcement import numbered_bodies, slow_client
from tests.support.brokers import ask, until
from tests.support.rules import rule


async def test_what_is_paused_waits_and_comes_in_order_after_resuming(tmp_path: Path) -> None:
    async with slow_client(tmp_path, prefetch=100) as there:
        assert await ask(there.broker, "pause", name="slow") == {"name": "slow", "subscriptions": ["s"]}
        await there.publish(1, 20)
        backlog = there.broker.engine.roster.clients["slow"].backlog
        await until(lambda: backlog.queues[1].messages == 20)
        entry = await ask(there.broker, "client", name="slow")
        assert entry["subscriptions"][0]["paused"] and entry["why_slow"]["cause"] == "paused"
        assert backlog.account.delivered.messages == 0 and there.balanced()
        await ask(there.broker, "resume", name="slow", subscription="s")
        assert await there.slow.deliveries(20) == numbered_bodies(1, 20)
        assert there.balanced()


async def test_a_pause_by_policy_without_an_end_is_ended_by_an_operator(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("pause", for_ms=0)) as there:
        await there.publish(1, 20)
        await there.slow.read_until("notice")
        there.slow.send_command({"c": "ack", "id": "s", "upto": 2})
        lane = there.broker.engine.roster.clients["slow"].backlog.queues[1]
        await asyncio.sleep(0.2)
        assert lane.paused and lane.messages == 18
        await ask(there.broker, "resume", name="slow")
        await until(lambda: lane.messages == 16)


async def test_an_offlined_client_gets_everything_in_order_and_is_live_again(tmp_path: Path) -> None:
    async with slow_client(tmp_path, prefetch=10) as there:
        await there.publish(1, 30)
        assert (await ask(there.broker, "offline", name="slow"))["state"] == "offlined"
        await there.publish(31, 10)
        for upto in range(10, 41, 10):
            assert await there.slow.deliveries(10) == numbered_bodies(upto - 9, 10)
            there.slow.send_command({"c": "ack", "id": "s", "upto": upto})
        await until(lambda: there.broker.engine.roster.clients["slow"].backlog.state.value == "live")
        assert there.balanced()


@pytest.mark.parametrize(
    ("do", "fields", "code"),
    [
        ("pause", {"name": "nobody"}, "unknown_client"),
        ("resume", {"name": "slow", "subscription": "x"}, "unknown_subscription"),
        ("offline", {"name": "nobody"}, "unknown_client"),
    ],
)
async def test_an_unknown_client_is_named_in_the_error(
    tmp_path: Path, do: str, fields: dict[str, str], code: str
) -> None:
    async with slow_client(tmp_path) as there:
        with pytest.raises(AssertionError, match=code):
            await ask(there.broker, do, **fields)
