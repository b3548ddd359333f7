"""A refused message stops no later one and is covered by no acknowledgement, on every native transport of a
broker's process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from broker_core.client import AsyncClient, Rejection
from broker_core.config import JournaledTopic
from broker_core.errors import ClientError
from tests.scenarios.test_slow_lines import address, every_transport
from tests.support.transports_process import broker_process


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    policy = every_transport()
    instance = replace(policy.instance, journaled_topics=(JournaledTopic("kept.>"),))
    with broker_process(replace(policy, instance=instance)) as made:
        yield made


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
async def test_refused_messages_are_reported_and_the_rest_is_stored_once_in_order(
    ports: dict[str, int], kind: str
) -> None:
    told: list[Rejection] = []
    at = address(kind, ports[kind])
    async with AsyncClient(at, f"feed-{kind}", on_rejection=told.append) as client:
        for number in range(100):
            await client.publish("queue.z" if number % 9 == 4 else f"kept.{kind}", b"%d" % number)
            client._publisher.flush_batch()
        with pytest.raises(ClientError, match="not_journaled"):
            await client.flush(60)
        assert client.connections == 1
        subscription = await client.subscribe(f"kept.{kind}", bookmark="0")
        taken = [
            int(body) async for batch in subscription.batches(until_completed=True) for body in batch.bodies()
        ]
    assert taken == [number for number in range(100) if number % 9 != 4]
    assert [int(body) for rejection in told for _, body in rejection.messages] == list(range(4, 100, 9))
