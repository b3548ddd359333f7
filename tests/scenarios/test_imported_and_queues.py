"""Imported entries for topics leave consumers of queues alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_core.config import PolicyDocument
from console.services import policy_import
from tests.support.brokers import running_broker, until
from tests.support.stomp_client import stomp_client, stomp_policy

ACTIVEMQ = """<x><policyEntry topic=">" topicPrefetch="3"><pendingMessageLimitStrategy>
<constantPendingMessageLimitStrategy limit="2"/>
</pendingMessageLimitStrategy><slowConsumerStrategy>
<abortSlowAckConsumerStrategy maxTimeSinceLastAck="1000" checkPeriod="1000"
maxSlowDuration="1000" abortConnection="true"/></slowConsumerStrategy></policyEntry></x>"""
QPID = (
    '<v><topic key="#"><consumer><messageCount>3</messageCount><policy name="Delete"/></consumer></topic></v>'
)


@pytest.mark.parametrize(("system", "text"), [("activemq", ACTIVEMQ), ("qpid", QPID)])
async def test_entries_for_topics_do_nothing_to_consumers_of_queues(
    system: str, text: str, tmp_path: Path
) -> None:
    policy = PolicyDocument.from_dict(
        {**stomp_policy().to_dict(), **policy_import.import_policy(system, text).document}
    )
    async with (
        running_broker(tmp_path, policy) as broker,
        stomp_client(broker) as worker,
        stomp_client(broker) as reader,
        stomp_client(broker) as feed,
    ):
        await worker.send_with_receipt(
            "SUBSCRIBE", id="q", destination="/queue/orders", ack="client-individual"
        )
        await reader.send_with_receipt(
            "SUBSCRIBE", id="t", destination="/topic/news", ack="client-individual"
        )
        for number in range(20):
            await feed.send_with_receipt("SEND", str(number).encode(), destination="/queue/orders")
        await asyncio.sleep(3.5)
        assert not list(broker.engine.decisions.recent)
        for number in range(20):
            await feed.send_with_receipt("SEND", str(number).encode(), destination="/topic/news")
        await until(lambda: list(broker.engine.decisions.recent), 15)
        await asyncio.sleep(1)
        assert {one.topic for one in broker.engine.decisions.recent} == {"news"}
