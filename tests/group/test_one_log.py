"""Several brokers, one log: records published at any member are at every member, in one order, as equal
bytes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from nats.aio.client import Client

from broker_core.client import EPOCH, AsyncClient
from tests.support.brokers import until
from tests.support.groups import hash_log, running_members
from tests.support.nats_servers import running_nats_servers


async def publish(address: str, name: str, first: int, last: int) -> None:
    async with AsyncClient(address, name) as client:
        for number in range(first, last + 1):
            await client.publish("t", {"by": name, "n": number})
        await client.flush()


async def read(address: str, name: str, number: int) -> list[tuple[str, str, int]]:
    """Return the first `number` records: bookmark, publisher, number."""
    found: list[tuple[str, str, int]] = []
    async with asyncio.timeout(60), AsyncClient(address, name) as client:
        async for message in await client.subscribe("t", bookmark=EPOCH):
            found.append((message.bookmark, message.data["by"], message.data["n"]))
            if len(found) == number:
                break
    return found


async def test_every_member_has_the_same_journal_and_serves_the_same_history(tmp_path: Path) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b", "c") as members:
            await asyncio.gather(
                *(publish(one.address, f"p{number}", 1, 200) for number, one in enumerate(members))
            )
            await until(lambda: all(one.journal.next_sequence > 600 for one in members))
            histories = [await read(one.address, "reader", 600) for one in members]
            assert histories[0] == histories[1] == histories[2]
            assert all(bookmark.startswith("group|") for bookmark, _, _ in histories[0])
            for name in ("p0", "p1", "p2"):
                assert [number for _, by, number in histories[0] if by == name] == list(range(1, 201))
            # The brokers' own records of who came and went are in it as well, and go on coming.
            await until(lambda: len({hash_log(one.journal) for one in members}) == 1)


async def test_large_entries_travel_packed_and_are_the_same_everywhere(
    tmp_path: Path,
) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as (a, b):

            async def grown(number: int) -> int:
                """Return the growth of the stream in bytes after `batches` batches of 50 KB."""
                stream = client.jetstream()
                before = (await stream.stream_info("SLUICE_group")).state.bytes
                async with AsyncClient(a.address, f"p{number}") as publisher:
                    for _ in range(number):
                        await publisher.publish_many("t", [b'{"price":%d}' % n * 10 for n in range(500)])
                    await publisher.flush()
                return (await stream.stream_info("SLUICE_group")).state.bytes - before

            client = Client()
            await client.connect(engines.urls[0])
            try:
                assert 0 < await grown(10) < 250_000
            finally:
                await client.close()
            await until(lambda: b.journal.next_sequence > 10 * 500)
            await until(lambda: hash_log(a.journal) == hash_log(b.journal))
