"""Imported limits of a durable subscription's queue act on this subscription's client alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker_core.broker import Broker
from broker_core.client import EPOCH
from broker_core.config import PolicyDocument
from console.services import policy_import
from tests.support.brokers import running_broker, tcp_policy, until
from tests.support.raw import RawClient

FILE = """<virtualhost><name>market</name>
<queue name="fix-1:desk"><consumer>
<depth>4235264</depth><maessageAge>600000</maessageAge><messageCount>50</messageCount>
<policy name="Delete"><options>
<option name="delete-persistent" value="false"/></options></policy></consumer></queue>
<queue name="fix-4:desk"><consumer><messageCount>50</messageCount><policy name="Delete"/></consumer></queue>
<queue name="fix-5:desk"><consumer><messageCount>50</messageCount><policy name="Delete"/></consumer></queue>
</virtualhost>"""


async def durable(broker: Broker, client: str, name: str) -> RawClient:
    made = await RawClient.connect(broker, client)
    made.send_command(
        {
            "c": "subscribe",
            "id": "s",
            "topic": "t",
            "durable": name,
            "bookmark": EPOCH,
            "ack": "client",
            "prefetch": 100,
        }
    )
    await made.read_until("processed")
    return made


async def test_the_named_subscription_alone_is_disconnected_and_kept(tmp_path: Path) -> None:
    policy = PolicyDocument.from_dict(
        {**tcp_policy().to_dict(), **policy_import.import_policy("qpid", FILE).document}
    )
    async with running_broker(tmp_path, policy) as broker:
        named = await durable(broker, "fix-1", "desk")
        other_client = await durable(broker, "fix-2", "desk")
        acknowledges = await durable(broker, "fix-4", "desk")
        within = await durable(broker, "fix-5", "desk")
        feed = await RawClient.connect(broker, "feed")
        for number in range(50):
            await feed.publish("t", [b"x"], number + 1)
        await acknowledges.deliveries(50)
        acknowledges.send_command({"c": "ack", "id": "s", "upto": 50})
        await within.deliveries(50)
        await asyncio.sleep(1.5)
        assert not list(broker.engine.decisions.recent), "50 messages are within the limit"
        within.send_command({"c": "ack", "id": "s", "upto": 10})
        await asyncio.sleep(0.2)
        await feed.publish("t", [b"x"], 51)
        await until(lambda: list(broker.engine.decisions.recent), 15)
        await asyncio.sleep(1.5)
        ((client, subscription, rule, action),) = {
            (one.client, one.subscription, one.rule, one.action) for one in broker.engine.decisions.recent
        }
        assert (client, subscription, rule, action) == (
            "fix-1",
            "s",
            "qpid.queue.message_count",
            "disconnect",
        )
        again = await durable(broker, "fix-1", "desk")
        assert len(await again.deliveries(51)) == 51, "the subscription and its backlog were retained"
        for one in (named, other_client, acknowledges, within, feed, again):
            one.close()
