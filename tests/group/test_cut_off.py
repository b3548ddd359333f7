"""A member without the log service makes no false statement about the end of the log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broker_core.batch import Batch
from broker_core.bookmark import EPOCH_TEXT, NOW_TEXT, format_moment
from broker_core.client import EPOCH, NOW, AsyncClient, ReconnectPolicy
from broker_core.protocols.native import COMMAND
from tests.group.test_one_log import publish, read
from tests.group.test_stored_positions import is_behind, record_of, replay_at, take
from tests.support.brokers import ask, until
from tests.support.groups import RunningMember, running_members
from tests.support.nats_servers import running_nats_servers
from tests.support.partition_proxy import PartitionProxy, running_partition_proxy
from tests.support.raw import RawClient
from tests.support.stomp_client import port_of, stomp_client, stomp_policy

HOLD_MS = 400
QUICK = ReconnectPolicy(first_delay=0.02, longest_delay=0.2)


@dataclass
class CutGroup:
    """Two members; `b` reaches the log service through a proxy."""

    a: RunningMember
    b: RunningMember
    cable: PartitionProxy

    def cut(self) -> None:
        self.cable.cut()

    async def heal(self) -> None:
        """Restore the proxy, and wait until the member has all records."""
        self.cable.restore()
        last = self.a.journal.next_sequence
        await until(lambda: self.b.is_taking_part() and self.b.journal.next_sequence >= last)


@asynccontextmanager
async def running_cut_group(home: Path) -> AsyncIterator[CutGroup]:
    """Both members have records 1 to 10 of a publisher; the cable is whole."""
    async with (
        running_nats_servers(home, 1) as engines,
        running_partition_proxy(engines.addresses[0].port) as cable,
    ):
        cabled = (f"nats://127.0.0.1:{cable.port}",)
        async with (
            running_members(home, engines.urls, "a", hold_ms=HOLD_MS) as (a,),
            running_members(home, cabled, "b", hold_ms=HOLD_MS) as (b,),
        ):
            await until(lambda: a.is_taking_part() and b.is_taking_part())
            await publish(a.address, "p", 1, 10)
            await until(lambda: numbers_in(b)[-1:] == [10] and b.member.addresses("tcp"))
            yield CutGroup(a, b, cable)


@asynccontextmanager
async def cut_group(home: Path) -> AsyncIterator[CutGroup]:
    """Run the group with `b` cut off and records 11 to 20 published at `a`."""
    async with running_cut_group(home) as group:
        group.cut()
        await publish(group.a.address, "p", 11, 20)
        yield group


def batches_in(member: RunningMember) -> list[Batch]:
    journal = member.journal
    last = journal.durable_sequence
    return [one for one in journal.read(1, 1 << 24, last) if "t" in one.topics] if last else []


def numbers_in(member: RunningMember) -> list[int]:
    """Return the numbers that `p` published, from a member's journal."""
    return [
        json.loads(one.body)["n"]
        for batch in batches_in(member)
        for one in batch.records()
        if one.topic == "t"
    ]


async def commands_until(client: RawClient, word: str) -> list[dict[str, Any]]:
    """Return commands up to the first whose `c` or `ack` is `word`, or to the end of the connection."""
    said: list[dict[str, Any]] = []
    while (frame := await client.next_frame(60.0)) is not None:
        if frame.kind == COMMAND:
            said.append(json.loads(bytes(frame.payload)))
            if word in (said[-1]["c"], said[-1].get("ack")):
                break
    return said


async def commands_within(client: RawClient, seconds: float) -> set[str]:
    """Return the kinds of frames received within `seconds`, without resume points."""
    said, loop = set[str](), asyncio.get_running_loop()
    until_then = loop.time() + seconds
    while (left := until_then - loop.time()) > 0:
        with suppress(TimeoutError):
            frame = await client.next_frame(left)
            said.add(str(json.loads(bytes(frame.payload)).get("ack")) if frame.kind == COMMAND else "record")
    return said - {"persisted"}


async def logged_on(member: RunningMember, name: str) -> tuple[RawClient, dict[str, Any]]:
    """Return a raw connection and the reply to its logon."""
    client = await RawClient.open(member.broker)
    client.name = name
    client.send_command({"c": "logon", "name": name})
    return client, (await commands_until(client, "processed"))[-1]


async def test_a_logon_is_told_no_sequence_and_a_publisher_is_sent_to_the_other_member(
    tmp_path: Path,
) -> None:
    async with cut_group(tmp_path) as group:
        client, answer = await logged_on(group.b, "p")
        assert not {"sequence", "session", "stored"} & answer.keys(), (
            "nothing that the others may know better"
        )
        await client.publish("t", [b'{"by":"p","n":21}'], 11)
        closing = (await commands_until(client, "closing"))[-1]
        assert (closing["c"], closing["code"]) == ("closing", "behind")
        assert closing["addresses"] == [group.a.address]
        client.close()
        assert group.b.broker.engine.dispatch.publisher_sequence("p") == 10
        await group.heal()
        client, answer = await logged_on(group.b, "p")
        assert answer["sequence"] == 20
        client.close()


async def test_a_member_that_hears_nothing_and_doesnt_know_it_says_nothing_of_the_end(tmp_path: Path) -> None:
    """The connection stays open and outgoing data arrives: for seconds the member considers itself
    attached.
    """
    async with running_cut_group(tmp_path) as group:
        group.cable.answers.clear()
        await publish(group.a.address, "p", 11, 20)
        assert group.b.is_taking_part()
        client, answer = await logged_on(group.b, "p")
        assert "sequence" not in answer
        client.send_command({"c": "subscribe", "id": "s", "topic": "t"})
        assert (await commands_until(client, "closing"))[-1]["code"] == "behind"
        client.close()
        await group.heal()
        client, answer = await logged_on(group.b, "p")
        assert answer["sequence"] == 20
        client.close()


async def test_what_follows_a_subscribe_comes_after_it(tmp_path: Path) -> None:
    """Subscribes share a read of the log's end; records published right after them are delivered to each."""
    async with running_cut_group(tmp_path) as group:
        client, answer = await logged_on(group.b, "s")
        for number in range(20):
            client.send_command({"c": "subscribe", "id": f"s{number}", "topic": "t"})
        await client.publish("t", [b'{"by":"s","n":1}'], answer["sequence"] + 1)
        assert len(await client.deliveries(20)) == 20
        client.send_command({"c": "subscribe", "id": "short", "topic": "t"})
        client.send_command({"c": "unsubscribe", "id": "short"})
        client.send_command({"c": "flush", "id": "f"})
        said = await commands_until(client, "completed")
        assert [one["ack"] for one in said if one.get("of") == "unsubscribe"] == ["processed"]
        client.close()


async def test_a_session_that_logged_on_during_the_cut_is_closed_after_it_and_nothing_is_acknowledged(
    tmp_path: Path,
) -> None:
    async with cut_group(tmp_path) as group:
        publisher, _ = await logged_on(group.b, "p")
        reader, _ = await logged_on(group.b, "never-published")
        await group.heal()
        # It was told nothing, and the log has 20 messages under its name.
        said = await commands_until(publisher, "closing")
        assert [one["code"] for one in said if one["c"] == "closing"] == ["behind"]
        # Whoever published nothing was told nothing wrong, and stays.
        reader.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": EPOCH_TEXT})
        assert len(await reader.deliveries(20)) == 20
        await reader.publish("t", [b'{"by":"never-published","n":1}'], 1)
        said = await commands_until(reader, "closing")
        assert [one["code"] for one in said if one["c"] == "closing"] == ["behind"]
        assert not any(one.get("ack") == "persisted" and not one.get("of") for one in said)
        reader.close()
        publisher.close()


async def test_what_a_client_publishes_that_fails_over_from_the_member_is_stored(tmp_path: Path) -> None:
    async with cut_group(tmp_path) as group:
        async with (
            asyncio.timeout(60),
            AsyncClient([group.b.address, group.a.address], "p", reconnect=QUICK) as client,
        ):
            for number in range(21, 26):
                await client.publish("t", {"by": "p", "n": number})
            await client.flush()
        assert numbers_in(group.a) == list(range(1, 26))
        await group.heal()
        await until(lambda: numbers_in(group.b) == list(range(1, 26)))


async def test_a_range_between_two_past_moments_ends_when_all_of_it_was_delivered(tmp_path: Path) -> None:
    async with cut_group(tmp_path) as group:
        batches = batches_in(group.a)
        range_of_all = f"[{format_moment(batches[0].accepted_at)}:{format_moment(batches[-1].accepted_at)}]"
        client, _ = await logged_on(group.b, "reader")
        client.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": range_of_all})
        assert len(await client.deliveries(10)) == 10
        assert await commands_within(client, 2.0) == set()
        await group.heal()
        assert len(await client.deliveries(10)) == 10
        ended = (await commands_until(client, "completed"))[-1]
        assert ended["ended"]
        client.close()


@pytest.mark.parametrize(
    "bookmark", [EPOCH_TEXT, "group|{newest}|"], ids=["from 0", "from its newest record"]
)
async def test_a_replay_is_completed_when_everything_was_delivered(bookmark: str, tmp_path: Path) -> None:
    async with cut_group(tmp_path) as group:
        newest = group.b.journal.durable_sequence
        had = 10 if bookmark == EPOCH_TEXT else 0
        client, _ = await logged_on(group.b, "reader")
        client.send_command(
            {"c": "subscribe", "id": "s", "topic": "t", "bookmark": bookmark.format(newest=newest)}
        )
        await client.read_until("processed")
        assert len(await client.deliveries(had)) == had
        assert await commands_within(client, 2.0) == set()
        await group.heal()
        assert len(await client.deliveries(10)) == 10
        await client.read_until("completed")
        # It goes on live.
        await publish(group.a.address, "p", 21, 25)
        assert len(await client.deliveries(5)) == 5
        client.close()


async def test_a_replay_of_a_moment_to_come_isnt_completed_without_the_end(tmp_path: Path) -> None:
    async with cut_group(tmp_path) as group:
        moment = format_moment(group.a.broker.engine.clock.now_ns() + 3_600 * 10**9)
        client, _ = await logged_on(group.b, "reader")
        client.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": moment})
        await client.read_until("processed")
        assert await commands_within(client, 2.0) == set()
        await group.heal()
        await client.read_until("completed")
        client.close()


REFUSED = {
    "live": {},
    "now": {"bookmark": NOW_TEXT},
    "never in the log": {"bookmark": "elsewhere|5|"},
    "ahead": {"bookmark": "group|1000000|"},
    "a range up to now": {"bookmark": f"[0:{NOW_TEXT}]"},
    "a new durable subscription": {"durable": "d"},
    "a managed replay": {"managed": "m", "bookmark": EPOCH_TEXT},
    "a snapshot": {"snapshot_key": "/n"},
}


@pytest.mark.parametrize("asked", REFUSED.values(), ids=REFUSED.keys())
async def test_a_subscription_that_begins_or_ends_at_the_end_of_the_log_is_refused(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    async with cut_group(tmp_path) as group:
        client, _ = await logged_on(group.b, "reader")
        client.send_command({"c": "subscribe", "id": "s", "topic": "t", **asked})
        said = await commands_until(client, "closing")
        assert [(one["c"], one.get("code")) for one in said] == [("closing", "behind")]
        assert said[-1]["addresses"] == [group.a.address]
        client.close()


async def test_a_subscriber_to_what_is_new_gets_nothing_older_after_the_cut(tmp_path: Path) -> None:
    async with cut_group(tmp_path) as group:
        both = [group.b.address, group.a.address]
        async with (
            asyncio.timeout(60),
            AsyncClient(both, "live", reconnect=QUICK) as live,
            AsyncClient(both, "now", reconnect=QUICK) as now,
            AsyncClient(group.b.address, "waits", reconnect=QUICK) as waits,
        ):
            waiting = asyncio.create_task(waits.subscribe("t", bookmark=NOW))
            subscriptions = [await live.subscribe("t"), await now.subscribe("t", bookmark=NOW)]
            assert not waiting.done()
            await group.heal()
            subscriptions.append(await waiting)
            await publish(group.a.address, "p", 21, 22)
            for one in subscriptions:
                assert (await anext(aiter(one))).data["n"] == 21


async def test_a_page_of_messages_isnt_called_complete_without_the_end(tmp_path: Path) -> None:
    async with cut_group(tmp_path) as group:
        page = await ask(group.b.broker, "browse", topic="t")
        assert (len(page["messages"]), page["complete"], page["behind"]) == (10, False, True)
        page = await ask(group.a.broker, "browse", topic="t")
        assert (len(page["messages"]), page["complete"], page["behind"]) == (20, True, False)
        await group.heal()
        page = await ask(group.b.broker, "browse", topic="t")
        assert (len(page["messages"]), page["complete"], page["behind"]) == (20, True, False)


async def test_a_client_that_reads_what_the_member_has_is_served(tmp_path: Path) -> None:
    async with cut_group(tmp_path) as group:
        assert [n for _, _, n in await read(group.b.address, "reader", 10)] == list(range(1, 11))
        await group.heal()
        assert [n for _, _, n in await read(group.b.address, "reader", 20)] == list(range(1, 21))


async def test_the_position_of_a_managed_replay_doesnt_go_back_when_the_cut_heals(tmp_path: Path) -> None:
    async with running_cut_group(tmp_path) as group:
        a, b = group.a, group.b
        assert await take(b, 8, 5, managed="night") == list(range(1, 9))
        await until(lambda: (one := replay_at(a)) is not None and is_behind(a, one.expires_from, 5))
        async with AsyncClient(b.address, "reader") as client:
            # It is served there when the member is cut off, and the member writes down where it stands.
            subscription = await client.subscribe("t", bookmark=EPOCH, ack="client", managed="night")
            await anext(aiter(subscription))
            group.cut()
            await publish(a.address, "p", 11, 20)
        assert await take(a, 15, 15, managed="night") == list(range(6, 21))
        position = record_of(a, 20) + 1
        await until(lambda: (one := replay_at(a)) is not None and one.expires_from >= position)
        await group.heal()
        await publish(a.address, "q", 1, 1)
        await until(lambda: (one := replay_at(b)) is not None and one.expires_from >= position)
        assert (one := replay_at(a)) is not None and one.expires_from >= position


@pytest.mark.parametrize("offset", [None, "next", "last"])
async def test_a_stomp_client_that_begins_at_the_end_is_sent_away(offset: str | None, tmp_path: Path) -> None:
    async with running_cut_group(tmp_path) as group:
        for member in (group.a, group.b):
            await member.broker.apply(stomp_policy(member.broker.engine.policy))
        await until(lambda: group.b.member.addresses("stomp"))
        group.cut()
        await until(lambda: not group.b.is_taking_part())
        async with stomp_client(group.b.broker) as client:
            headers = {"x_stream_offset": offset} if offset is not None else {}
            client.send("SUBSCRIBE", id="s", destination="/topic/t", **headers)
            error = await client.read()
            assert (error.command, error.headers["message"]) == ("ERROR", "behind")
            assert error.headers["x-sluice-addresses"] == f"stomp://127.0.0.1:{port_of(group.a.broker)}"
        await group.heal()
        async with stomp_client(group.b.broker) as client:
            await client.send_with_receipt(
                "SUBSCRIBE", id="s", destination="/topic/t", x_stream_offset="first"
            )
            assert json.loads((await client.read()).body)["n"] == 1
