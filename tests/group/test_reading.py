"""Reads of a member from the NATS log: bounded, however far behind it is and however requests end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext, api
from nats.js.errors import APIError

from broker_core.group import jetstream
from broker_core.group.engine_log import EntrySender
from broker_core.group.jetstream import PULL, JetStreamLog, _up_to_date
from broker_core.group.settings import GroupSettings
from tests.support.brokers import until
from tests.support.groups import GROUP
from tests.support.nats_servers import NatsServers, running_nats_servers

ENTRIES = 600


@asynccontextmanager
async def a_log(engines: NatsServers, content: bytes) -> AsyncIterator[JetStreamLog]:
    """Run a NATS server whose log has these entries; yield an attached reader that has read none."""
    writer = JetStreamLog(GroupSettings(GROUP, "w", engines.urls))
    reader = JetStreamLog(GroupSettings(GROUP, "r", engines.urls))
    await writer.attach(uuid4())
    place = 0
    for number in range(ENTRIES):
        place = await writer.append(EntrySender("w", "run", number), content, place)
    await reader.attach(None)
    try:
        yield reader
    finally:
        await reader.close()
        await writer.close()


@asynccontextmanager
async def requests(engines: NatsServers) -> AsyncIterator[list[bytes]]:
    """Record the requests for entries that reach the NATS server."""
    asked: list[bytes] = []
    client = Client()
    await client.connect(engines.urls[0])

    async def note(message: object) -> None:
        asked.append(message.data)  # type: ignore[attr-defined]

    await client.subscribe("$JS.API.CONSUMER.MSG.NEXT.>", cb=note)
    await client.flush()
    try:
        yield asked
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("content", "most_bytes", "together"),
    [(b"x", jetstream.PULL_BYTES, PULL), (b"x" * 4_096, 64 * 1_024, 14)],
    ids=["requests end with their last entry", "requests end for their bytes"],
)
async def test_a_member_far_behind_asks_once_for_what_it_is_given(
    content: bytes, most_bytes: int, together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream, "PULL_BYTES", most_bytes)
    async with running_nats_servers(tmp_path, 1) as engines, a_log(engines, content) as reader:
        async with requests(engines) as asked:
            await reader.read_from(1)
            read: list[int] = []
            while len(read) < ENTRIES:
                read += [entry.number for entry in await reader.next_entry(1)]
            assert read == list(range(1, ENTRIES + 1))
            await until(lambda: len(asked) >= ENTRIES // PULL)
            assert len(asked) <= ENTRIES / together + 2
            assert reader._asked <= 2 * PULL


@pytest.mark.parametrize("servers", [1, 3])
async def test_a_consumer_that_has_heartbeats_alone_is_left_for_one_elsewhere(
    servers: int, tmp_path: Path
) -> None:
    """The consumer's server may be catching up; here the test pauses the consumer."""
    async with running_nats_servers(tmp_path, servers) as engines:
        await engines.wait_ready(GROUP)
        async with a_log(engines, b"x") as reader:
            await reader.read_from(ENTRIES)
            assert [entry.number for entry in await reader.next_entry(1)] == [ENTRIES]
            engine, consumer = reader._reads_at, reader._consumer
            client = Client()
            await client.connect(engines.urls[0])
            await client.jetstream().pause_consumer(
                reader._stream, consumer, (datetime.now(UTC) + timedelta(hours=1)).isoformat()
            )
            while not (await client.jetstream().consumer_info(reader._stream, consumer)).paused:
                await asyncio.sleep(0.05)
            await client.close()
            writer = JetStreamLog(GroupSettings(GROUP, "w", engines.urls))
            await writer.attach(None)
            await writer.append(EntrySender("w", "run", ENTRIES), b"x", ENTRIES)
            await writer.close()
            await reader.stream_info()  # a member does it every two seconds
            async with asyncio.timeout(30):
                assert [entry.number for entry in await reader.next_entry(1)] == [ENTRIES + 1]
            assert reader._consumer != consumer
            assert servers == 1 or reader._reads_at != engine


async def test_an_entry_that_is_refused_for_the_one_before_it_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = JetStreamContext.publish, [True, True]

    async def publish(self: JetStreamContext, *arguments: Any, **named: Any) -> Any:
        if refused and refused.pop():
            raise APIError(code=400, err_code=10164, description="wrong last sequence")
        return await real(self, *arguments, **named)

    monkeypatch.setattr(JetStreamContext, "publish", publish)
    async with running_nats_servers(tmp_path, 1) as engines:
        writer = JetStreamLog(GroupSettings(GROUP, "w", engines.urls))
        await writer.attach(uuid4())
        assert await writer.append(EntrySender("w", "run", 0), b"x", 0) == 1
        assert refused == []
        await writer.close()


def observed_requests(**of_it: object) -> api.PeerInfo:
    """A NATS server as the leader sees it."""
    return api.PeerInfo(
        **{"name": "e", "current": False, "offline": False, "active": 1_000, "lag": 0, **of_it}
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "last", "before", "up_to_date"),
    [
        (observed_requests(current=True), 100, None, True),
        (observed_requests(lag=1), 100, 90, True),
        (observed_requests(lag=10), 100, 90, True),
        (observed_requests(lag=11), 100, 90, False),
        (observed_requests(lag=1), 100, None, False),
        (observed_requests(lag=1), 100, 100, False),
        (observed_requests(lag=0, active=11_000_000_000), 100, 100, False),
        (observed_requests(lag=0, offline=True), 100, 100, False),
    ],
)
def test_an_engine_is_up_to_date_that_has_what_there_was_at_the_look_before(
    engine: api.PeerInfo, last: int, before: int | None, up_to_date: bool
) -> None:
    assert _up_to_date(engine, last, before) is up_to_date
