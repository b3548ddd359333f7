"""Rules on the rate of acknowledgements act on consumers that owe some, and acknowledge too few."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker_core.broker import Broker
from broker_core.config import PolicyDocument
from broker_core.config.rule_terms import DecisionReason
from console.services import policy_import
from tests.support.brokers import running_broker, tcp_policy, until
from tests.support.raw import RawClient

FILE = """<core xmlns="urn:activemq:core"><address-setting match="t">
<slow-consumer-threshold>3</slow-consumer-threshold>
<slow-consumer-policy>KILL</slow-consumer-policy><slow-consumer-check-period>2</slow-consumer-check-period>
</address-setting></core>"""


def enforced_policy() -> PolicyDocument:
    """Return the policy of Artemis's file, with the rule enforced."""
    (rule,) = policy_import.import_policy("artemis", FILE).document["rules"]
    return PolicyDocument.from_dict({**tcp_policy().to_dict(), "rules": [{**rule, "mode": "enforce"}]})


async def subscriber(broker: Broker, name: str) -> RawClient:
    made = await RawClient.connect(broker, name)
    made.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client", "prefetch": 500})
    await made.read_until("processed")
    return made


async def acknowledge(client: RawClient, per_second: int, total: int) -> None:
    await client.deliveries(total)
    for number in range(1, total + 1):
        await asyncio.sleep(1 / per_second)
        client.send_command({"c": "ack", "id": "s", "upto": number})


async def test_a_consumer_below_the_rate_is_disconnected_and_no_other(tmp_path: Path) -> None:
    async with running_broker(tmp_path, enforced_policy()) as broker:
        slow, steady, idle = [await subscriber(broker, name) for name in ("slow", "steady", "idle")]
        feed = await RawClient.connect(broker, "feed")
        await asyncio.sleep(2.5)  # time without messages counts for no consumer
        for number in range(400):
            await feed.publish("t", [b"x"], number)
        await idle.deliveries(400)
        idle.send_command({"c": "ack", "id": "s", "upto": 400})
        tasks = [asyncio.create_task(acknowledge(*one)) for one in ((slow, 1, 400), (steady, 30, 400))]
        await until(lambda: broker.engine.decisions.recent, 30)
        await asyncio.sleep(2)
        assert {(one.client, one.action) for one in broker.engine.decisions.recent} == {
            ("slow", "disconnect")
        }
        decision = broker.engine.decisions.recent[0]
        assert decision.reason == DecisionReason.ACKNOWLEDGED_RATE
        assert 0 <= decision.observed < 3
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in (slow, steady, idle, feed):
            one.close()
