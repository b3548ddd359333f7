"""A log restored from an older backup assigns sequences again.

Clients that are ahead are notified, and their stores skip nothing.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.client import AsyncClient, FileBookmarkStore, FilePublishStore, ReconnectPolicy
from broker_core.config import TransportSettings
from tests.support.brokers import running_broker, tcp_policy, until
from tests.support.nats_servers import free_ports

QUICK = ReconnectPolicy(first_delay=0.02, longest_delay=0.1, first_connect_timeout=30)


class _Reader:
    """A client with a bookmark store, and the records it has read and processed."""

    def __init__(self, address: str, store: Path) -> None:
        self.had: list[int] = []
        self.client = AsyncClient(address, "reader", bookmark_store=FileBookmarkStore(store), reconnect=QUICK)
        self._work = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with self.client as client:
            subscription = await client.subscribe("t", bookmark="MOST_RECENT")
            async for message in subscription:
                self.had.append(message.data["n"])
                subscription.done(message)

    async def end(self) -> None:
        self._work.cancel()
        with suppress(asyncio.CancelledError):
            await self._work


@pytest.mark.parametrize("running", [True, False], ids=["it runs", "it comes back"])
async def test_a_client_ahead_of_the_log_is_notified_and_then_skips_nothing(
    tmp_path: Path, running: bool
) -> None:
    (port,) = free_ports(1)
    policy = replace(tcp_policy(), transports=(TransportSettings("tcp", "tcp", port),))
    address, home, marks = f"tcp://127.0.0.1:{port}", tmp_path / "b", tmp_path / "marks"
    store = FilePublishStore(tmp_path / "unsent")
    publisher = AsyncClient(address, "p", publish_store=store, reconnect=QUICK)

    async def publish(first: int, last: int) -> None:
        for n in range(first, last + 1):
            await publisher.publish("t", {"n": n})
        await publisher.flush()

    async with running_broker(home, policy):
        await publisher.start()
        await publish(1, 10)
    shutil.copytree(home, tmp_path / "backup")
    async with running_broker(home, policy):
        reader = _Reader(address, marks)
        await publish(11, 40)
        await until(lambda: reader.had == list(range(1, 41)))
        if not running:
            await reader.end()
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "backup", home)
    async with running_broker(home, policy):
        if not running:
            reader = _Reader(address, marks)
        await until(lambda: any(one.code == "bookmark_unknown" for one in reader.client.notices))
        reader.had.clear()
        await publish(41, 45)
        await until(lambda: reader.had == list(range(41, 46)))
        await reader.end()
        await publish(46, 120)  # the log is now longer than the bookmark from before the restoration
        reader = _Reader(address, marks)
        await until(lambda: reader.had == list(range(46, 121)))
        assert [one.code for one in reader.client.notices] == []
        await reader.end()
    (missing,) = [one for one in publisher.notices if one.code == "acknowledged_missing"]
    assert missing.details == {"known": 10, "acknowledged": 40}
    await publisher.close()
