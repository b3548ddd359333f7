"""Client names in a group: only the newest client of a name stays, and only stored records are
acknowledged.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from nats.aio.client import Client

from broker_core.batch import CLAIM
from broker_core.client import AsyncClient
from broker_core.client.publish_store import FilePublishStore, MemoryPublishStore, PublishStore
from broker_core.errors import ClientError
from broker_core.group.engine_log import EntrySender, LogEntry
from broker_core.group.state_machine import decode_batches
from broker_core.names import BROKER_NAME
from tests.support.brokers import until
from tests.support.groups import RunningMember, hash_log, running_members, start_member
from tests.support.nats_servers import running_nats_servers
from tests.support.raw import RawClient

FIRST, SECOND = b'{"by":"first"}', b'{"by":"second"}'


def stored(member: RunningMember, name: str) -> list[tuple[int, int, bytes]]:
    journal, found, at = member.journal, list[tuple[int, int, bytes]](), 1
    last = journal.next_sequence - 1  # what is compared, whether or not it is synced already
    while at <= last:
        for batch in journal.read(at, 1 << 20, last):
            if batch.publisher_name == name:
                numbers = batch.publisher_sequences().tolist()
                found += zip([batch.session] * batch.count, numbers, batch.bodies(), strict=True)
            at = batch.last_sequence + 1
    return found


async def same_everywhere(*members: RunningMember) -> None:
    await until(lambda: len({hash_log(one.journal) for one in members}) == 1)


async def answer_to(client: RawClient) -> tuple[str, int]:
    """Return how a publish ended: "persisted" with the sequence, or the code of the closing command."""
    while True:
        frame = await client.next_command()
        if frame.get("ack") == "persisted":
            return "persisted", frame["sequence"]
        if frame["c"] == "closing":
            return frame["code"], 0


@pytest.mark.parametrize("announced", [True, False])
async def test_of_two_clients_of_one_name_on_two_members_each_is_stored_or_closed(
    tmp_path: Path, announced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the members cannot report clients to each other: then the log alone decides."""
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as (a, b):
            if not announced:
                for one in (a, b):
                    monkeypatch.setattr(one.member._made.notices, "receive", lambda content: None)
            first = await RawClient.connect(a.broker, "feed")
            second = await RawClient.connect(b.broker, "feed")
            assert (first.logon_reply["sequence"], second.logon_reply["sequence"]) == (0, 0)
            with suppress(ConnectionError):
                await first.publish("t", [FIRST] * 3, first=1)
            one = await answer_to(first)
            with suppress(ConnectionError):
                await second.publish("t", [SECOND] * 4, first=1)
            other = await answer_to(second)
            await same_everywhere(a, b)
            bodies = [body for _, _, body in stored(b, "feed")]
            if announced:
                assert one in [("client_replaced", 0), ("persisted", 3)]
            else:
                assert (one, other) == (("persisted", 3), ("stale_sequence", 0))
            for (what, _), body, count in ((one, FIRST, 3), (other, SECOND, 4)):
                assert bodies.count(body) in ((count,) if what == "persisted" else (0, count))
            again = await RawClient.connect(b.broker, "feed")
            assert again.logon_reply["sequence"] == max(number for _, number, _ in stored(b, "feed"))
            await again.publish("t", [SECOND], first=again.logon_reply["sequence"] + 1)
            assert (await again.read_until("persisted"))["sequence"] == again.logon_reply["sequence"] + 1
            for client in (first, second, again):
                client.close()


async def test_a_session_that_lost_its_name_is_closed_and_what_it_sent_behind_that_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as (a, b):
            for one in (a, b):
                monkeypatch.setattr(one.member._made.notices, "receive", lambda content: None)
            first = await RawClient.connect(a.broker, "feed")
            await first.publish("t", [FIRST], first=1)
            await first.read_until("persisted")
            second = await RawClient.connect(b.broker, "feed")
            assert second.logon_reply["sequence"] == 1 and second.logon_reply["session"] not in (0, None)
            await second.publish("t", [SECOND], first=2)
            await second.read_until("persisted")
            assert await answer_to(first) == ("client_replaced", 0), "when its member applies that"
            await same_everywhere(a, b)
            assert [body for _, _, body in stored(a, "feed")] == [FIRST, SECOND]
            first.close()
            second.close()


async def publish_all(address: str, store: PublishStore, bodies: list[bytes]) -> bool:
    """Publish like an application that replaces a replaced client by a new one with the same store."""
    unpublished = list(bodies)
    while True:
        try:
            async with AsyncClient(address, "feed", publish_store=store) as client:
                while unpublished:
                    await client.publish("t", unpublished[0])
                    unpublished.pop(0)
                async with asyncio.timeout(60):
                    await client.flush()
                return True
        except ClientError as error:
            assert error.code == "client_replaced"
            await asyncio.sleep(0.3)


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_two_programs_of_one_name_with_publish_stores_lose_and_double_nothing(
    tmp_path: Path, kind: str
) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as (a, b):

            def store(name: str) -> PublishStore:
                return MemoryPublishStore() if kind == "memory" else ReopenedStore(tmp_path / name)

            messages = [[b"%s %d" % (by, n) for n in range(4)] for by in (b"first", b"second")]
            assert await asyncio.gather(
                publish_all(a.address, store("1"), messages[0]),
                publish_all(b.address, store("2"), messages[1]),
            ) == [True, True]
            await same_everywhere(a, b)
            bodies = [body for _, _, body in stored(a, "feed")]
            assert sorted(bodies) == sorted(messages[0] + messages[1])
            for one in messages:
                assert [body for body in bodies if body in one] == one, "in the order of its program"


class ReopenedStore(FilePublishStore):
    """A file that a program keeps from one client object to the next."""

    def close(self) -> None: ...


async def test_a_subscriber_is_replaced_by_one_of_its_name_on_another_member(tmp_path: Path) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as (a, b):
            first = await RawClient.connect(a.broker, "screen")
            second = await RawClient.connect(b.broker, "screen")
            assert (await first.read_until("closing"))["code"] == "client_replaced"
            assert "screen" in b.broker.engine.roster.clients
            third = await RawClient.connect(a.broker, "screen")
            assert (await second.read_until("closing"))["code"] == "client_replaced"
            await until(lambda: "screen" not in b.broker.engine.roster.clients)
            for client in (first, second, third):
                client.close()


async def test_a_name_is_settled_by_the_members_also_when_the_news_of_a_logon_was_lost(
    tmp_path: Path,
) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as (a, b):
            notices = a.member._made.notices
            assert notices is not None
            heard, notices.receive = notices.receive, lambda content: None  # type: ignore[method-assign]
            first = await RawClient.connect(a.broker, "screen")
            second = await RawClient.connect(b.broker, "screen")
            await asyncio.sleep(0.3)
            assert "screen" in a.broker.engine.roster.clients, "each side of a partition has one"
            notices.receive = heard  # type: ignore[method-assign]
            notices.send_all()  # as when it has found the log again
            assert (await first.read_until("closing"))["code"] == "client_replaced"
            assert "screen" in b.broker.engine.roster.clients, "the newest stays"
            first.close()
            second.close()


async def test_a_members_restart_knows_the_sessions_of_the_log(tmp_path: Path) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a"):
            b = await start_member(tmp_path, "b", engines.urls)
            first = await RawClient.connect(b.broker, "feed", session=5)
            await first.publish("t", [FIRST] * 3, first=1)
            await first.read_until("persisted")
            first.close()
            await b.stop()
            b = await start_member(tmp_path, "b", engines.urls)
            try:
                again = await RawClient.connect(b.broker, "feed", session=5)
                assert (
                    again.logon_reply["sequence"],
                    again.logon_reply["session"],
                    again.logon_reply["stored"],
                ) == (3, 5, 3)
                await again.publish("t", [FIRST] * 3, first=1)
                assert (await again.read_until("persisted"))["sequence"] == 3, "a repeat"
                again.close()
                other = await RawClient.connect(b.broker, "feed", session=6)
                assert other.logon_reply["session"] == 5 and "stored" not in other.logon_reply
                await other.publish("t", [SECOND] * 3, first=1)
                assert await answer_to(other) == ("stale_sequence", 0), "no repeat"
                other.close()
                assert len(stored(b, "feed")) == 3
            finally:
                await b.stop()


async def test_a_thousand_logons_claim_nothing_in_the_log(tmp_path: Path) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as members:
            client = Client()
            await client.connect(engines.urls[0])
            stream = client.jetstream()
            before = (await stream.stream_info("SLUICE_group")).state.last_seq
            async with AsyncExitStack() as clients:
                for start in range(0, 1_000, 100):
                    made = await asyncio.gather(
                        *(
                            RawClient.connect(members[n % 2].broker, f"c{n}")
                            for n in range(start, start + 100)
                        )
                    )
                    for one in made:
                        clients.callback(one.close)
                await asyncio.sleep(0.5)
                last = (await stream.stream_info("SLUICE_group")).state.last_seq
                publishers: set[str] = set()
                for number in range(before + 1, last + 1):
                    message = await stream.get_msg("SLUICE_group", number)
                    entry = LogEntry(number, 0, EntrySender("", "", 0), message.data or b"", 0)
                    for batch in decode_batches(entry):
                        assert not batch.flags & CLAIM
                        publishers.add(batch.publisher_name)
            await client.close()
            assert publishers <= {BROKER_NAME}, "no claim, only what the brokers record of connections"
            print(json.dumps({"logons": 1_000, "entries": last - before}))
            assert last - before < 400, "and these by the hundred"


@pytest.mark.parametrize("repeats", [True, False])
async def test_a_session_that_repeats_what_is_under_way_here_is_closed_when_that_loses_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeats: bool
) -> None:
    """Bytes of the session's former connection arrive after its logon, and another session takes the name
    before they are in the log.

    Later records of the first session must not be acknowledged: that would cover the lost ones.
    """
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as (a, b):
            for one in (a, b):
                monkeypatch.setattr(one.member._made.notices, "receive", lambda content: None)
            gate, append = asyncio.Semaphore(0), a.member._engine.append

            async def held(sender: EntrySender, content: bytes, at: int) -> int:
                await gate.acquire()
                return await append(sender, content, at)

            former = await RawClient.connect(a.broker, "feed", session=7)
            other = await RawClient.connect(b.broker, "feed", session=8)
            await asyncio.sleep(0.5)
            monkeypatch.setattr(a.member._engine, "append", held)
            logon = asyncio.create_task(RawClient.connect(a.broker, "feed", session=7))
            await until(lambda: a.member._made._appending.underway is not None)
            await former.publish("t", [FIRST] * 3, first=1)
            await until(lambda: a.broker.engine.dispatch.messages_in == 3)
            gate.release()
            again = await logon
            assert again.logon_reply["sequence"] == 0
            await other.publish("t", [SECOND] * 3, first=1)
            await other.read_until("persisted")
            if repeats:
                await again.publish("t", [FIRST] * 3, first=1)
            await again.publish("t", [FIRST] * 3, first=4)
            await until(lambda: a.broker.engine.dispatch.messages_in == (9 if repeats else 6))
            for _ in range(50):
                gate.release()
            assert await answer_to(again) == ("stale_sequence", 0)
            monkeypatch.undo()
            last = await RawClient.connect(b.broker, "feed", session=7)
            assert (last.logon_reply["sequence"], last.logon_reply["session"]) == (3, 8)
            assert "stored" not in last.logon_reply, "so all six are sent again"
            await same_everywhere(a, b)
            assert [body for _, _, body in stored(a, "feed")] == [SECOND] * 3
            for client in (former, other, again, last):
                client.close()


@pytest.mark.parametrize("repeated", [False, True])
async def test_a_member_that_reads_two_sessions_at_once_tells_the_one_that_the_log_names(
    tmp_path: Path, repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name's holder follows the log's order, also where a member applies its own client's batch and
    another member's in one go, or its own is a repeat."""
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as (a, b):
            for one in (a, b):
                monkeypatch.setattr(one.member._made.notices, "receive", lambda content: None)
            first = await RawClient.connect(a.broker, "feed", session=11)
            await first.publish("t", [FIRST] * 2, first=1)
            await first.read_until("persisted")
            await same_everywhere(a, b)
            engine, may_read, is_held = a.member._engine, asyncio.Event(), asyncio.Event()
            read = engine.next_entry

            async def held(max_bytes: int) -> list[LogEntry]:
                is_held.set()
                await may_read.wait()
                return await read(max_bytes)

            monkeypatch.setattr(engine, "next_entry", held)
            warm = await RawClient.connect(b.broker, "warm")
            await warm.publish("t", [b"{}"], first=1)  # the read that has begun ends with it
            await warm.read_until("persisted")
            await until(is_held.is_set)
            if repeated:
                moved = await RawClient.connect(b.broker, "feed", session=11)
                await moved.publish("t", [FIRST], first=3)
                await moved.read_until("persisted")
                moved.close()
            else:
                await first.publish("t", [FIRST], first=3)
                await until(lambda: len(stored(b, "feed")) == 3)
            second = await RawClient.connect(b.broker, "feed", session=22)
            assert (second.logon_reply["sequence"], second.logon_reply["session"]) == (3, 11)
            await second.publish("t", [SECOND] * 3, first=4)
            await second.read_until("persisted")
            if repeated:
                await first.publish("t", [FIRST], first=3)
                await until(lambda: a.member._made._appending.underway is None)
            may_read.set()
            if not repeated:
                assert await answer_to(first) == ("persisted", 3), "before it is closed"
            assert await answer_to(first) == ("client_replaced", 0)
            await same_everywhere(a, b)
            third = await RawClient.connect(a.broker, "feed", session=33)
            assert (third.logon_reply["sequence"], third.logon_reply["session"]) == (6, 22)
            await third.publish("t", [FIRST], first=7)
            assert await answer_to(third) == ("persisted", 7)
            assert [number for _, number, _ in stored(a, "feed")] == list(range(1, 8))
            for client in (first, second, third, warm):
                client.close()
