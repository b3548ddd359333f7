"""A topic that is no longer journaled while clients read it from the log.

The preview names the readers, and each is notified.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from broker_core.config import JournaledTopic, PolicyDocument
from tests.support.brokers import ask, running_broker, tcp_policy, until
from tests.support.raw import RawClient
from tests.support.stomp_client import stomp_client, stomp_policy


def policy_of(revision: int, *topics: JournaledTopic, **settings: Any) -> PolicyDocument:
    """Return a policy revision that journals these topics."""
    policy = stomp_policy(tcp_policy())
    instance = replace(policy.instance, journaled_topics=topics, **settings)
    return replace(policy, instance=instance, revision=revision)


ALL = policy_of(1, JournaledTopic(">"))
FEWER = policy_of(2, JournaledTopic("orders.>"))


def affected_clients(effect: dict[str, Any]) -> set[tuple[str, str, str, bool, str]]:
    return {
        (one["client"], one["subscription"], one["subscription_kind"], one["connected"], one["extent"])
        for one in effect["unrecorded"]
    }


async def subscriber(broker: Any, name: str, **asked: Any) -> RawClient:
    client = await RawClient.connect(broker, name)
    client.send_command({"c": "subscribe", "id": "s", **asked})
    await client.read_until("processed")
    return client


async def test_the_preview_names_who_reads_topics_that_would_not_be_journaled(tmp_path: Path) -> None:
    async with running_broker(tmp_path, ALL) as broker:
        connected = [
            await subscriber(broker, "bookmark", topic="prices.a", bookmark="0"),
            await subscriber(broker, "wide", topic=">", bookmark="0"),
            await subscriber(broker, "plain", topic="prices.a"),
            await subscriber(broker, "fine", topic="orders.>", bookmark="0"),
            await subscriber(broker, "here", topic="prices.b", durable="h"),
        ]
        away = await subscriber(broker, "away", topic="prices.>", durable="d")
        managed = await subscriber(broker, "managed", topic="prices.m", bookmark="0", managed="nightly")
        away.close()
        managed.close()
        async with stomp_client(broker, client_id="worker") as worker:
            await worker.send_with_receipt("SUBSCRIBE", id="1", destination="/queue/jobs")
            await until(lambda: {"away", "managed"}.isdisjoint(broker.engine.roster.clients))
            effect = await ask(broker, "preview", policy=FEWER.to_dict())
            found = affected_clients(effect)
            assert found == {
                ("bookmark", "s", "bookmark", True, "all"),
                ("wide", "s", "bookmark", True, "part"),
                ("away", "d", "durable", False, "all"),
                ("here", "s", "durable", True, "all"),
                ("managed", "nightly", "replay", False, "all"),
                ("worker", "1", "queue", True, "all"),
            }
            assert effect["unrecorded_in_all"] == len(found) and effect["unrecorded"][-1]["extent"] == "part"
            assert (await ask(broker, "preview", policy=replace(ALL, revision=2).to_dict()))[
                "unrecorded"
            ] == []
        await until(lambda: "worker" not in broker.engine.roster.clients)
        effect = await ask(broker, "preview", policy=FEWER.to_dict())
        assert ("queue.jobs", "queue.jobs", "queue", False, "all") in affected_clients(effect)
        for one in connected:
            one.close()


async def test_each_reader_is_told_and_its_state_says_why(tmp_path: Path) -> None:
    async with running_broker(tmp_path, ALL) as broker:
        client = await subscriber(broker, "bookmark", topic="prices.a", bookmark="0")
        wide = await subscriber(broker, "wide", topic=">", bookmark="0")
        fine = await subscriber(broker, "fine", topic="orders.a", bookmark="0")
        durable = await subscriber(broker, "here", topic="prices.b", durable="h")
        await ask(broker, "apply", policy=FEWER.to_dict())
        for one, topic, extent in (
            (client, "prices.a", "all"),
            (wide, ">", "part"),
            (durable, "prices.b", "all"),
        ):
            notice = await one.read_until("notice")
            assert notice["code"] == "no_longer_journaled"
            assert notice["details"] == {"id": "s", "topic": topic, "extent": extent}
        entries = {one["name"]: one for one in await ask(broker, "clients")}
        assert entries["bookmark"]["health"] == "not recorded"
        assert "no longer journals prices.a" in entries["bookmark"]["why_slow"]["sentence"]
        (subscription,) = entries["bookmark"]["subscriptions"]
        assert (subscription["unrecorded"], subscription["health"]) == ("all", "not recorded")
        (subscription,) = entries["wide"]["subscriptions"]
        assert (subscription["unrecorded"], subscription["health"]) == ("part", "keeps up")
        (subscription,) = entries["fine"]["subscriptions"]
        assert (subscription["unrecorded"], subscription["health"]) == ("", "keeps up")
        (kept,) = await ask(broker, "durables")
        assert kept["unrecorded"] is True
        assert not [one for one in fine.received_commands if one["c"] == "notice"]

        # The next revision is no news to who was told, and one that journals them again clears the state.
        await ask(broker, "apply", policy=replace(FEWER, revision=3).to_dict())
        await ask(broker, "apply", policy=replace(ALL, revision=4).to_dict())
        entries = {one["name"]: one for one in await ask(broker, "clients")}
        assert {one["health"] for one in entries.values()} == {"keeps up"}
        anna = await RawClient.connect(broker, "anna")
        await anna.publish("prices.a", [b"again"], 1)
        assert await client.deliveries(1) == [b"again"]
        assert len([one for one in client.received_commands if one["c"] == "notice"]) == 1
        (kept,) = await ask(broker, "durables")
        assert kept["unrecorded"] is False


async def test_stomp_clients_are_told_with_an_error_or_with_the_next_message(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, ALL) as broker,
        stomp_client(broker, client_id="worker") as worker,
        stomp_client(broker, client_id="wide") as wide,
        stomp_client(broker, client_id="plain") as plain,
    ):
        await worker.send_with_receipt("SUBSCRIBE", id="1", destination="/queue/jobs")
        await wide.send_with_receipt("SUBSCRIBE", id="1", destination="/topic/>", x_sluice_bookmark="0")
        await plain.send_with_receipt("SUBSCRIBE", id="1", destination="/topic/prices.a")
        await ask(broker, "apply", policy=FEWER.to_dict())
        error = await worker.read_error()
        assert error.headers["message"] == "no_longer_journaled" and b"queue.jobs" in error.body
        await plain.send_with_receipt("SEND", b"o", destination="/topic/orders.a")
        message = await wide.read()
        assert (message.body, message.headers["x-sluice-notice"]) == (b"o", "no_longer_journaled")
        await plain.send_with_receipt("SEND", b"p", destination="/topic/orders.a")
        assert "x-sluice-notice" not in (await wide.read()).headers
        plain.send("SEND", b"still", destination="/topic/prices.a")
        assert (await plain.read()).body == b"still", "a topic is delivered, journaled or not"
