"""Client events on `$SLUICE.clients`: each event, and a sample per second while figures change."""

from __future__ import annotations

from pathlib import Path

import orjson

from broker_core.client import AsyncClient
from tests.support.brokers import address_of, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with, rule


async def test_a_client_s_story_is_published_in_order(tmp_path: Path) -> None:
    policy = policy_with(rule("notify", 3))
    async with (
        running_broker(tmp_path, policy) as broker,
        AsyncClient(address_of(broker), "watcher") as watcher,
    ):
        events = await watcher.subscribe("$SLUICE.clients", bookmark="0|1|")
        async with AsyncClient(address_of(broker), "writer") as writer:
            slow = await RawClient.connect(broker, "slow")
            slow.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client", "prefetch": 2})
            await slow.read_until("processed")
            await writer.publish_many("t", [b"x"] * 9)
            await writer.flush()
            await until(
                lambda: (
                    "slow" in broker.statistics._sample_keys
                    and broker.statistics._sample_keys["slow"][1] == 7
                )
            )
            slow.close()
            story: list[str] = []
            sums = ("acknowledged", "in_flight", "waiting", "gone")
            async for message in events:
                event = orjson.loads(message.body)
                if event["client"] == "slow" and event["event"] not in story[-1:]:
                    story.append(event["event"])
                if event["client"] == "slow" and event["event"] in ("sample", "disconnect"):
                    assert sum(event[f"{name}_messages"] for name in sums) == event["matched_messages"]
                if story[-1:] == ["disconnect"]:
                    assert (event["delivered_messages"], event["delivered_bytes"]) == (2, 2)
                    assert (event["matched_messages"], event["waiting_messages"]) == (9, 0)
                    break
            assert story[:3] == ["connect", "subscribe", "slow"] and "sample" in story


async def test_an_idle_client_is_not_sampled(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        await reader.subscribe("t")
        broker.engine.events.take()
        for _ in range(3):
            await broker.statistics.sample_second()
        assert broker.engine.events.take() == {}
