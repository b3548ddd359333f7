"""A stock activemq.xml, imported: the broker discards for a stopped consumer what ActiveMQ would discard."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.config import PolicyDocument
from console.services import policy_import
from tests.support.brokers import address_of, running_broker, tcp_policy, until
from tests.support.raw import RawClient

STOCK = """<beans xmlns="http://www.springframework.org/schema/beans">
<broker xmlns="http://activemq.apache.org/schema/core" brokerName="localhost"
        dataDirectory="${activemq.data}">
<destinationPolicy><policyMap><policyEntries><policyEntry topic=">">
  <pendingMessageLimitStrategy>
    <constantPendingMessageLimitStrategy limit="1000"/>
  </pendingMessageLimitStrategy>
</policyEntry></policyEntries></policyMap></destinationPolicy></broker></beans>"""
PREFETCH = 32_767
"""ActiveMQ's default for topics."""


def imported_policy(text: str) -> PolicyDocument:
    return PolicyDocument.from_dict(
        {**tcp_policy().to_dict(), **policy_import.import_policy("activemq", text).document}
    )


async def publish(broker: Broker, number: int) -> None:
    async with AsyncClient(address_of(broker), "writer") as writer:
        for _ in range(number // 100):
            await writer.publish_many("prices", [b"x" * 50] * 100)
        await writer.flush(timeout=60)


@pytest.mark.parametrize("ack", [None, "client"])
@pytest.mark.parametrize(("number", "discarded"), [(20_000, 0), (40_000, 40_000 - PREFETCH - 1_000)])
async def test_a_stopped_consumer_loses_what_it_would_lose_there(
    tmp_path: Path, ack: str | None, number: int, discarded: int
) -> None:
    async with running_broker(tmp_path, imported_policy(STOCK)) as broker:
        raw = await RawClient.connect(broker, "stopped")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "prices", **({"ack": ack} if ack else {})})
        await raw.read_until("processed")
        raw._reader._transport.pause_reading()  # type: ignore[attr-defined]
        await publish(broker, number)
        await asyncio.sleep(1.5)  # one or two checks of the rules
        account = broker.engine.roster.clients["stopped"].account
        assert account.matched.messages == number
        lost = sum(one.messages for one in account.discarded.values())
        # Messages that the socket accepted before it was full count as dispatched, in addition to the
        # prefetch.
        in_socket = 0 if ack else 6_000
        assert max(discarded - in_socket, 0) <= lost <= discarded


@pytest.mark.parametrize(
    "strategy",
    [
        'maxSlowDuration="1000" checkPeriod="1000" abortConnection="false"',
        'maxSlowDuration="0" checkPeriod="1000" abortConnection="true"',
    ],
)
async def test_a_slow_consumer_is_removed_alone_or_left_as_there(tmp_path: Path, strategy: str) -> None:
    """`abortConnection="false"` removes the consumer alone; a duration of 0 aborts no consumer."""
    aborts = 'abortConnection="false"' in strategy
    inner = f"<slowConsumerStrategy><abortSlowConsumerStrategy {strategy}/></slowConsumerStrategy>"
    text = f"<x><policyEntry topic='prices' topicPrefetch='2'>{inner}</policyEntry></x>"
    async with running_broker(tmp_path, imported_policy(text)) as broker:
        client = await RawClient.connect(broker, "slow")
        client.send_command({"c": "subscribe", "id": "s", "topic": "prices", "ack": "client"})
        await client.read_until("processed")
        client.send_command({"c": "subscribe", "id": "other", "topic": "news"})
        await client.read_until("processed")
        await publish(broker, 100)
        if aborts:
            await until(lambda: len(broker.engine.roster.clients["slow"].subscriptions) == 1, seconds=30)
        await asyncio.sleep(4)
        made = [(one.client, one.subscription, one.action) for one in broker.engine.decisions.recent]
        assert made == ([("slow", "s", "cancel_subscription")] if aborts else [])
        feed = await RawClient.connect(broker, "feed")
        await feed.publish("news", [b"still connected"])
        while b"still connected" not in await client.deliveries(1):
            pass
        feed.close()
        client.close()
