"""ActiveMQ's abortSlowAckConsumerStrategy, imported, acts on the consumers that ActiveMQ would abort."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.config import PolicyDocument
from console.services import policy_import
from tests.support.brokers import running_broker, tcp_policy, until
from tests.support.raw import RawClient
from tests.support.steady_readers import SteadyReader, reading_steadily

RULE = "activemq.max_time_since_last_ack"


def imported_policy(strategy: str) -> PolicyDocument:
    text = f"""<beans xmlns="http://www.springframework.org/schema/beans">
    <broker xmlns="http://activemq.apache.org/schema/core">
    <destinationPolicy><policyMap><policyEntries><policyEntry topic=">"><slowConsumerStrategy>
    <abortSlowAckConsumerStrategy {strategy}/></slowConsumerStrategy></policyEntry></policyEntries>
    </policyMap></destinationPolicy></broker></beans>"""
    return PolicyDocument.from_dict(
        {**tcp_policy().to_dict(), **policy_import.import_policy("activemq", text).document}
    )


async def subscriber(broker: Broker, name: str, topic: str = "t") -> RawClient:
    made = await RawClient.connect(broker, name)
    made.send_command({"c": "subscribe", "id": "s", "topic": topic, "ack": "client", "prefetch": 100})
    await made.read_until("processed")
    return made


async def acknowledge_each(client: RawClient, seconds: float) -> None:
    """Acknowledge one more message every `seconds`, so that some are always unacknowledged."""
    await client.deliveries(40)
    for number in range(1, 41):
        await asyncio.sleep(seconds)
        client.send_command({"c": "ack", "id": "s", "upto": number})


def decided(broker: Broker) -> set[tuple[str, str, str]]:
    return {(one.client, one.rule, one.action) for one in broker.engine.decisions.recent}


@pytest.mark.parametrize(("closes", "action"), [("true", "disconnect"), ("false", "cancel_subscription")])
async def test_consumers_that_stop_acknowledging_are_aborted_and_no_others(
    closes: str, action: str, tmp_path: Path
) -> None:
    strategy = (
        f'maxTimeSinceLastAck="3000" checkPeriod="1000" maxSlowDuration="1000" abortConnection="{closes}"'
    )
    async with running_broker(tmp_path, imported_policy(strategy)) as broker:
        silent, slow, steady, idle = [
            await subscriber(broker, name) for name in ("silent", "slow", "steady", "idle")
        ]
        rare = await subscriber(broker, "rare", "another")
        feed = await RawClient.connect(broker, "feed")
        with reading_steadily([SteadyReader(broker.statistics.transports[0]["port"], 0, 8_192)]) as (
            stopped,
        ):
            await until(lambda: stopped.name in broker.engine.roster.clients)
            for number in range(40):
                await feed.publish("t", [b"x" * 1_000], number)
                await asyncio.sleep(0.002)
            await idle.deliveries(40)
            idle.send_command({"c": "ack", "id": "s", "upto": 40})
            tasks = [asyncio.create_task(acknowledge_each(*one)) for one in ((steady, 0.5), (slow, 9))]
            wanted = {(name, RULE, action) for name in ("silent", "slow", stopped.name)}
            await until(lambda: decided(broker) >= wanted, 30)
            # A consumer without unacknowledged messages has the full limit from its next message on.
            await feed.publish("another", [b"x"])
            await rare.deliveries(1)
            await asyncio.sleep(1.5)
            assert not tasks[0].done() and decided(broker) == wanted
            for task in tasks:
                task.cancel()
        for one in (silent, slow, steady, idle, rare, feed):
            one.close()


async def test_a_consumer_has_as_many_looks_as_in_activemq(tmp_path: Path) -> None:
    """Four checks a second apart must find the consumer slow, after one second without an acknowledgement."""
    strategy = 'maxTimeSinceLastAck="1000" checkPeriod="1000" maxSlowDuration="4000"'
    async with running_broker(tmp_path, imported_policy(strategy)) as broker:
        silent = await subscriber(broker, "silent")
        feed = await RawClient.connect(broker, "feed")
        await feed.publish("t", [b"x"])
        await silent.deliveries(1)
        await until(lambda: decided(broker), 30)
        (decision,) = broker.engine.decisions.recent
        assert (decision.rule, decision.setting) == (RULE, "maxTimeSinceLastAck")
        assert decision.observed > 1_000 + 3_000
        silent.close()
        feed.close()
