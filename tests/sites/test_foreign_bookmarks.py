"""Bookmarks of another site, in a log that has copies of its records: ranges, removed records, and records
in flight.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_core import batch
from broker_core.broker import Broker
from broker_core.journal.files import FileSystem
from broker_core.protocols.native import COMMAND, DELIVER
from tests.support.brokers import ask, running_broker
from tests.support.failpoints import SyncGate
from tests.support.raw import RawClient
from tests.support.sites import TOKEN, free_port, site_policy

SESSION = 7
"""Publisher session of London's link."""


@asynccontextmanager
async def newyork(home: Path, files: FileSystem | None = None) -> AsyncIterator[tuple[Broker, RawClient]]:
    """Run `newyork`; yield it, and a client that publishes as the link of `london`."""
    at = free_port()
    policy = site_policy("newyork", 0, link_port=at)
    policy = replace(policy, instance=replace(policy.instance, journal_size=64 * 1024))
    async with running_broker(home, policy, files=files) as broker:
        link = RawClient(*await asyncio.open_connection("127.0.0.1", at))
        link.name = "site.london"
        link.send_command({"c": "logon", "name": link.name, "token": TOKEN, "session": SESSION})
        await link.read_until("processed")
        yield broker, link
        link.close()


async def carry(link: RawClient, numbers: range, padding: int = 0) -> None:
    """Publish London's records of these numbers, each as a batch of its own."""
    for number in numbers:
        await link.publish("t", [b"%d" % number + b" " * padding], number, SESSION)
    while (await link.read_until("persisted"))["sequence"] < numbers[-1]:
        pass


async def publish_locally(broker: Broker, name: str, bodies: list[bytes]) -> None:
    local = await RawClient.connect(broker, name)
    await local.publish("t", bodies, 1)
    await local.read_until("persisted")
    local.close()


def local_sequences(broker: Broker) -> dict[int, int]:
    """Return the local sequences of London's records, by their numbers."""
    found = broker.engine.journal.read(1, 1 << 20, broker.engine.frontier.durable)
    return {
        number: sequence
        for one in found
        if one.publisher_name == "site.london"
        for number, sequence in zip(one.publisher_sequences().tolist(), one.sequences().tolist(), strict=True)
    }


async def remove_segments(broker: Broker, part: float) -> int:
    """Remove this part of the sealed segments; return the last removed sequence."""
    plan = await ask(broker, "journal_plan", action="remove", age_s=0)
    names = plan["chosen"][: int(len(plan["chosen"]) * part)]
    done = await ask(broker, "journal_remove", names=names, age_s=0)
    return int(done["last_sequence"])


async def subscribe(broker: Broker, name: str, bookmark: str, **options: Any) -> RawClient:
    client = await RawClient.connect(broker, name)
    client.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": bookmark, **options})
    return client


async def replay(
    broker: Broker, name: str, bookmark: str, **options: Any
) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the numbers that a replay delivers until it is completed, and the replies to the subscribe."""
    client = await subscribe(broker, name, bookmark, **options)
    bodies, replies = list[bytes](), list[dict[str, Any]]()
    while not replies or (replies[-1].get("ack") != "completed" and replies[-1]["c"] != "error"):
        frame = await client.next_frame()
        assert frame is not None
        if frame.kind == COMMAND:
            replies.append(json.loads(bytes(frame.payload)))
        elif frame.kind == DELIVER:
            bodies += batch.Batch.parse(frame.payload).bodies()
    client.close()
    return [int(body) for body in bodies], replies


@pytest.mark.parametrize(
    ("bookmark", "expected"),
    [
        ("[london|10|:london|14|]", [10, 12, 14]),
        ("(london|10|:london|14|)", [12]),
        ("[london|9|:london|13|)", [10, 12]),
        ("[0:london|4|]", [0, 2, 4]),
        ("[london|16|:0|1|]", [16, 18, 20, 100]),
        ("[london|18|:newyork|{local[20]}|]", [18, 20]),
        ("[newyork|{local[16]}|:london|18|]", [16, 18]),
        ("[london|16|,london|12|:london|14|,london|18|]", [12, 14, 16, 18]),
    ],
)
async def test_a_range_begins_and_ends_at_bookmarks_of_another_site(
    tmp_path: Path, bookmark: str, expected: list[int]
) -> None:
    async with newyork(tmp_path) as (broker, link):
        await publish_locally(broker, "local", [b"0"])
        await carry(link, range(2, 21, 2))
        await publish_locally(broker, "later", [b"100"])
        numbers, replies = await replay(broker, "reader", bookmark.format(local=local_sequences(broker)))
        assert numbers == expected
        assert [one["c"] for one in replies] == ["ack", "ack"] and replies[-1]["ended"]


async def test_a_range_up_to_a_record_that_no_link_brought_yet_says_so(tmp_path: Path) -> None:
    async with newyork(tmp_path) as (broker, link):
        await carry(link, range(1, 6))
        numbers, replies = await replay(broker, "reader", "[london|4|:london|9|]")
        assert numbers == [4, 5]
        notice = next(one for one in replies if one["c"] == "notice")
        assert (notice["code"], notice["details"]["unknown"]) == ("bookmark_unknown", ["london|9|"])


async def test_records_behind_another_sites_bookmark_that_were_removed_are_a_gap(tmp_path: Path) -> None:
    async with newyork(tmp_path) as (broker, link):
        await carry(link, range(1, 401), padding=1_000)
        last = await remove_segments(broker, 0.5)
        numbers, replies = await replay(broker, "reader", "london|10|")
        assert numbers == list(range(last + 1, 401))
        gap = next(one for one in replies if one["c"] == "gap")
        assert (gap["from"], gap["to"]) == ("newyork|1|", f"newyork|{last}|")
        _, replies = await replay(broker, "strict", "london|10|", on_gap="error")
        assert replies[-1]["code"] == "bookmark_gone"
        # A bookmark of a record that is there has no gap.
        numbers, replies = await replay(broker, "near", "london|398|", on_gap="error")
        assert numbers == [399, 400] and [one["c"] for one in replies] == ["ack", "ack"]


async def test_when_all_of_a_sites_records_were_removed_the_remaining_log_is_delivered(
    tmp_path: Path,
) -> None:
    async with newyork(tmp_path) as (broker, link):
        await carry(link, range(1, 101), padding=1_000)
        for first in range(1_000, 1_300, 50):
            bodies = [b"%d" % number + b" " * 1_000 for number in range(first, first + 50)]
            await publish_locally(broker, f"local-{first}", bodies)
        last = await remove_segments(broker, 1.0)
        assert last >= 100
        numbers, replies = await replay(broker, "reader", "london|100|")
        assert numbers and numbers[-1] == 1_299
        assert [one["c"] for one in replies] == ["ack", "gap", "ack"]


async def test_a_live_subscriber_with_another_sites_record_in_flight_gets_no_record_twice(
    tmp_path: Path,
) -> None:
    gate = SyncGate()
    async with newyork(tmp_path, files=gate) as (broker, link):
        await carry(link, range(1, 3))
        live = await subscribe(broker, "live", "0", durability="live")
        assert await live.deliveries(2) == [b"1", b"2"]
        await live.read_until("completed")
        await carry(link, range(3, 4))
        assert await live.deliveries(1) == [b"3"]
        gate.block()
        await link.publish("t", [b"4"], 4, SESSION)
        assert await live.deliveries(1) == [b"4"]
        live.close()
        back = await subscribe(broker, "back", "london|4|", durability="live")
        await asyncio.sleep(0.1)
        gate.release()
        await back.read_until("processed")
        await carry(link, range(5, 6))
        assert await back.deliveries(1) == [b"5"]
        back.close()
