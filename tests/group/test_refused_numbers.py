"""A publisher sequence that one member refuses is covered by no acknowledgement of any member."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_core.client import AsyncClient, Rejection
from broker_core.config import JournaledTopic
from broker_core.errors import ClientError
from tests.group.test_publisher_sessions import same_everywhere, stored
from tests.support.brokers import until
from tests.support.groups import running_members
from tests.support.nats_servers import running_nats_servers
from tests.support.raw import RawClient

JOURNALED = (JournaledTopic("kept.>"),)


async def test_what_one_member_refused_is_no_repeat_at_another(tmp_path: Path) -> None:
    async with (
        running_nats_servers(tmp_path, 1) as engines,
        running_members(tmp_path, engines.urls, "a", "b", journaled_topics=JOURNALED) as (a, b),
    ):
        first = await RawClient.connect(a.broker, "feed", session=5)
        for number, topic in enumerate(("kept.a", "queue.z", "kept.a"), 1):
            await first.publish(topic, [b"%d" % number], number)
        codes = [(await first.read_until("error"))["code"] for _ in range(2)]
        assert codes == ["not_journaled", "refused_before"]
        await until(lambda: stored(b, "feed"))
        again = await RawClient.connect(b.broker, "feed", session=5)
        assert (again.logon_reply["sequence"], again.logon_reply["stored"]) == (1, 1)
        await again.publish("queue.z", [b"2"], 2)
        assert (await again.read_until("error"))["code"] == "not_journaled", "no repeat"
        again.send_command({"c": "skip", "sequence": 2})
        await again.publish("kept.a", [b"3"], 3)
        assert (await again.read_until("persisted"))["sequence"] == 3
        await same_everywhere(a, b)
        assert stored(a, "feed") == [(5, 1, b"1"), (5, 3, b"3")]
        first.close()
        again.close()


async def test_a_client_that_fails_over_before_reading_a_refusal_gets_it_and_loses_nothing(
    tmp_path: Path,
) -> None:
    told: list[Rejection] = []
    async with (
        running_nats_servers(tmp_path, 1) as engines,
        running_members(tmp_path, engines.urls, "a", "b", journaled_topics=JOURNALED) as (a, b),
        AsyncClient([a.address, b.address], "feed", on_rejection=told.append) as client,
    ):
        for start in range(0, 60, 20):
            link = client._connector.link
            assert link is not None
            link.on_frames = lambda link, frames: None  # what the member says gets lost
            for number in range(start, start + 20):
                await client.publish("queue.z" if number % 6 == 5 else "kept.a", b"%d" % number)
                client._publisher.flush_batch()
            await asyncio.sleep(0.2)
            link.abort()
            with pytest.raises(ClientError, match="not_journaled"):
                await client.flush(60)
        assert client.connections == 4
        await same_everywhere(a, b)
        refused = [int(body) for rejection in told for _, body in rejection.messages]
        assert refused == list(range(5, 60, 6))
        taken = [int(body) for _, _, body in stored(b, "feed")]
        assert taken == [number for number in range(60) if number % 6 != 5]
