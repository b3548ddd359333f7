"""Subscribers with durability `live` at a group's member receive the log's records once, in order."""

from __future__ import annotations

import errno
import json
from contextlib import AsyncExitStack
from pathlib import Path

from tests.group.test_one_log import publish
from tests.support.brokers import until
from tests.support.failpoints import Failpoint, Failpoints
from tests.support.groups import running_members, start_member
from tests.support.nats_servers import running_nats_servers
from tests.support.raw import RawClient


async def test_records_that_a_members_disk_refuses_are_not_called_lost_and_not_given_again(
    tmp_path: Path,
) -> None:
    disk = Failpoints(Failpoint("pwritev", 4, errno.ENOSPC, times=2))
    async with running_nats_servers(tmp_path, 1) as engines, AsyncExitStack() as there:
        (b,) = await there.enter_async_context(running_members(tmp_path, engines.urls, "b"))
        a = await start_member(tmp_path, "a", engines.urls, disk)
        there.push_async_callback(a.stop)
        await until(lambda: a.is_taking_part() and b.is_taking_part())
        reader = await RawClient.connect(a.broker, "reader")
        reader.send_command(
            {"c": "subscribe", "id": "s", "topic": "t", "bookmark": "0", "durability": "live"}
        )
        await reader.read_until("completed")
        for number in range(1, 21):
            await publish(b.address, "p", number, number)
            if number <= 4:  # the disk refuses one of these
                await until(lambda: a.journal.durable_sequence == b.journal.durable_sequence, 30)
        late = await RawClient.connect(a.broker, "late")
        late.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": "0", "durability": "live"})
        await publish(b.address, "p", 21, 21)
        for client in (reader, late):
            numbers = [json.loads(body)["n"] for body in await client.deliveries(21)]
            assert numbers == list(range(1, 22))
            assert "not_stored" not in [one.get("code") for one in client.received_commands]
        assert disk.calls["pwritev .journal"] >= 6, "it was refused twice"
