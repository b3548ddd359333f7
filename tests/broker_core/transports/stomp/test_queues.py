"""Queues: each message to one of the consumers, until one of them has acknowledged it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import orjson
import pytest

from broker_core.client import AsyncClient
from broker_core.delivery.account import DiscardCause
from broker_core.delivery.backlog import Backlog
from broker_core.journal import log_reader
from broker_core.journal.files import FileSystem
from broker_core.journal.segment_reader import BatchScan, SegmentSource
from broker_core.replay.sharing import shared_subscription
from broker_core.transports.stomp.tcp import StompProtocol
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.stomp_client import stomp_client, stomp_policy

JOBS = "/queue/jobs"


async def test_consumers_share_what_comes_and_get_what_others_give_back(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as publisher:
        async with stomp_client(broker, client_id="b") as second:
            async with stomp_client(broker, client_id="a") as first:
                for client in (first, second):
                    await client.send_with_receipt(
                        "SUBSCRIBE", id="1", destination=JOBS, ack="client-individual", prefetch_count=2
                    )
                for number in range(5):
                    await publisher.send_with_receipt("SEND", b"%d" % number, destination=JOBS)
                mine = [await first.read() for _ in range(2)]
                others = [await second.read() for _ in range(2)]
                assert sorted(one.body for one in mine + others) == [b"0", b"1", b"2", b"3"]
                (queue,) = await ask(broker, "durables")
                assert (queue["shared"], queue["consumers"], queue["unacknowledged"]) == (True, 2, 4)
                first.send("NACK", id=mine[0].headers["ack"])  # the first that comes again, before 4
                again = await first.read()
                assert (again.body, again.headers["redelivered"]) == (mine[0].body, "true")
                accounts = [broker.engine.roster.clients[name].account for name in ("a", "b")]
                assert accounts[0].discarded[DiscardCause.RETURNED].messages == 1
                assert accounts[0].matched.messages == 3 and not accounts[0].lost_volume.messages
            await until(lambda: "a" not in broker.engine.roster.clients)
            for one in others:
                second.send("ACK", id=one.headers["ack"])
            found = [await second.read() for _ in range(2)]
            assert [one.headers["redelivered"] for one in found] == ["true", "true"], "before what nobody had"
            assert [one.body for one in found] == sorted(one.body for one in mine)
            second.send("ACK", id=found[0].headers["ack"])
            assert ((last := await second.read()).body, last.headers["redelivered"]) == (b"4", "false")
        await until(lambda: not any(one.connected for one in broker.engine.durables.list_entries()))
        async with stomp_client(
            broker
        ) as third:  # what was acknowledged behind the first that wasn't is remembered
            await third.send_with_receipt("SUBSCRIBE", id="1", destination=JOBS)
            rest = [await third.read() for _ in range(2)]
            assert [one.body for one in rest] == [found[1].body, b"4"]


class BlockedRenameDisk(FileSystem):
    """A disk on which the rename of the position file waits."""

    def __init__(self) -> None:
        self.asked = 0
        self.open = threading.Event()

    def rename(self, source: Path, target: Path) -> None:
        if target.name.endswith(".kept.json"):
            self.asked += 1
            assert self.open.wait(60)
        super().rename(source, target)


async def test_queues_that_are_asked_for_together_share_a_write_and_are_answered_when_they_are_on_disk(
    tmp_path: Path,
) -> None:
    files = BlockedRenameDisk()
    async with (
        running_broker(tmp_path, stomp_policy(), files=files) as broker,
        stomp_client(broker) as client,
    ):
        client.write(
            b"".join(
                b"SUBSCRIBE\nid:%d\ndestination:/queue/%d\nreceipt:%d\n\n\0" % (n, n, n) for n in range(300)
            )
        )
        client.send("SUBSCRIBE", id="bad", destination="/queue/x", selector="(((", receipt="bad")
        client.send("SEND", b"never", destination="/queue/1")
        await until(lambda: len(broker.engine.position_store.durables) == 300)
        assert not any(one.consumers for one in broker.engine.durables.list_entries())
        files.open.set()
        answers = [await client.read() for _ in range(300)]
        assert {one.command for one in answers} == {"RECEIPT"}
        assert {one.headers["receipt-id"] for one in answers} == {str(n) for n in range(300)}
        assert files.asked <= 10, "one that had begun, one for all others, and one a second"
        stored = orjson.loads((tmp_path / "journal" / "test-1.kept.json").read_bytes())["kept"]
        assert len(stored) == 300
        # What was refused is said behind what wasn't, and nothing after it is done.
        error = await client.read_error()
        assert (error.headers["message"], error.headers["receipt-id"]) == ("bad_selector", "bad")
        assert not broker.engine.journal.may_contain_topic("queue.1", 1)


async def test_a_message_that_nobody_can_do_anything_with_becomes_a_dead_letter(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        headers = {"id": "1", "destination": JOBS, "ack": "client", "x_sluice_max_deliveries": 2}
        await client.send_with_receipt("SEND", b"poison", destination=JOBS, color="red")
        await client.send_with_receipt("SEND", b"none", destination=JOBS)
        await client.send_with_receipt("SUBSCRIBE", **headers, prefetch_count=1)
        for redelivered in ("false", "true"):
            found = await client.read()
            assert (found.body, found.headers["redelivered"]) == (b"poison", redelivered)
            client.send("NACK", id=found.headers["ack"])
        found = await client.read()
        assert found.body == b"none"
        client.send("NACK", id=found.headers["ack"], requeue="false")  # RabbitMQ's word for never again
        await client.send_with_receipt("SUBSCRIBE", id="2", destination="/queue/dead.jobs")
        dead = [await client.read() for _ in range(2)]
        assert [one.body for one in dead] == [b"poison", b"none"]
        assert (
            dead[0].headers.items()
            >= {
                "destination": "/queue/dead.jobs",
                "color": "red",
                "x-sluice-dead-letter-from": "queue.jobs",
                "x-sluice-dead-letter-of": "queue.jobs",
                "x-sluice-dead-letter-bookmark": "test-1|1|",
            }.items()
        )


async def test_a_restart_brings_only_what_wasnt_acknowledged(tmp_path: Path) -> None:
    headers = {"id": "1", "destination": JOBS, "ack": "client-individual"}
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        for number in range(6):
            client.send("SEND", b"%d" % number, destination=(JOBS, "/topic/other")[number % 2])
        await client.send_with_receipt("SUBSCRIBE", **headers)
        found = [await client.read() for _ in range(3)]
        await client.send_with_receipt("ACK", id=found[1].headers["ack"])
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        await client.send_with_receipt("SEND", b"new", destination=JOBS)
        await client.send_with_receipt("SUBSCRIBE", **headers)
        found = [await client.read() for _ in range(3)]
        assert [(one.body, one.headers["redelivered"]) for one in found] == [
            (b"0", "true"),
            (b"4", "true"),
            (b"new", "false"),
        ]


async def test_consumers_that_read_nothing_hold_nothing_up(tmp_path: Path) -> None:
    """One consumer acknowledges nothing; it only keeps the messages delivered to it."""
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as idle:
        await idle.send_with_receipt("SUBSCRIBE", id="1", destination=JOBS, ack="client", prefetch_count=3)
        async with (
            AsyncClient(address_of(broker), "busy") as busy,
            AsyncClient(address_of(broker), "p") as feed,
        ):
            mine = await busy.subscribe(
                "queue.jobs", durable="queue.jobs", shared=True, ack="client", prefetch=50
            )
            await feed.publish_many("queue.jobs", [b"%d" % number for number in range(2_000)])
            got: set[bytes] = set()
            async with asyncio.timeout(60):
                async for message in mine:
                    got.add(message.body)
                    mine.ack(message)
                    if len(got) == 1_997:
                        break
            held = {(await idle.read()).body for _ in range(3)}
            assert held | got == {b"%d" % number for number in range(2_000)} and not held & got


async def test_a_client_that_unsubscribes_in_the_same_write_is_no_consumer(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        await client.send_with_receipt("SEND", b"0", destination=JOBS)
        for number in range(20):
            first = {"x_stream_offset": "first"} if number % 2 else {}
            for destination in (JOBS, "/topic/queue.jobs"):
                client.send("SUBSCRIBE", id="s", destination=destination, ack="client", **first)
                client.send("UNSUBSCRIBE", id="s")
        client.send("SEND", b"1", destination="/topic/other", receipt="last")
        while (found := await client.read()).command != "RECEIPT":
            assert found.command == "MESSAGE", found
        (queue,) = await ask(broker, "durables")
        assert (queue["consumers"], queue["unacknowledged"], queue["connected"]) == (0, 0, False)


async def test_no_more_is_unacknowledged_than_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_subscription, "MAX_OUTSTANDING", 10)
    async with (
        running_broker(tmp_path, stomp_policy()) as broker,
        AsyncClient(address_of(broker), "p") as feed,
    ):
        async with AsyncClient(address_of(broker), "greedy") as greedy:
            subscription = await greedy.subscribe(
                "queue.jobs", durable="queue.jobs", shared=True, ack="client-individual", prefetch=100
            )
            mine = aiter(subscription)
            await feed.publish_many("queue.jobs", [b"%d" % number for number in range(50)])  # one batch
            got = [await anext(mine) for _ in range(10)]
            assert (await ask(broker, "durables"))[0]["unacknowledged"] == 10
            for _ in range(10, 50):
                subscription.ack(got.pop(0))
                got.append(await anext(mine))
                assert (await ask(broker, "durables"))[0]["unacknowledged"] <= 10


async def test_a_queue_that_was_deleted_begins_empty_after_a_restart_too(tmp_path: Path) -> None:
    headers = {"id": "1", "destination": JOBS, "ack": "client"}
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        await client.send_with_receipt("SEND", b"before", destination=JOBS)
        await client.send_with_receipt("SUBSCRIBE", **headers)
        assert (await client.read()).body == b"before"
        await client.send_with_receipt("UNSUBSCRIBE", id="1")
        await ask(broker, "durable_delete", client="shared:queues", name="queue.jobs")
        assert await ask(broker, "durables") == []
        await client.send_with_receipt("SEND", b"between", destination=JOBS)
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        await client.send_with_receipt("SUBSCRIBE", **headers)
        assert (await client.read()).body == b"between", "what came after it was deleted is a new queue's"
        await client.send_with_receipt(
            "SUBSCRIBE", id="2", destination="/topic/queue.jobs", x_stream_offset="first"
        )
        assert (await client.read()).body == b"before", "the log has everything"


async def test_a_turn_asks_as_many_consumers_as_it_gives_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    takes = shared_subscription._ConsumerState.can_receive
    monkeypatch.setattr(
        shared_subscription._ConsumerState, "can_receive", lambda one: asked.append(one) or takes(one)
    )
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        for number in range(300):
            client.send("SUBSCRIBE", id=number, destination=JOBS, ack="client", prefetch_count=5)
        await client.send_with_receipt("SEND", b"first", destination="/topic/other")
        before = len(asked)
        for number in range(20):
            await client.send_with_receipt("SEND", b"%d" % number, destination="/topic/other")
            client.send("SEND", b"%d" % number, destination=JOBS)
            message = await client.read()
            client.send("ACK", id=message.headers["ack"])
        assert len(asked) - before < 20 * 30


async def test_only_queues_with_messages_are_checked_and_receipts_share_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, asked, said = 300, list[int](), list[bytes]()
    takes, say = Backlog.can_send_with, StompProtocol.write_frame

    def counted(self: Backlog, stream: int) -> bool:
        asked.append(stream)
        return takes(self, stream)

    def noted(self: StompProtocol, frame: bytes, *, behind: bool = False, last: bool = False) -> None:
        said.append(frame)
        say(self, frame, behind=behind, last=last)

    monkeypatch.setattr(Backlog, "can_send_with", counted)
    monkeypatch.setattr(StompProtocol, "write_frame", noted)
    async with (
        running_broker(tmp_path, stomp_policy()) as broker,
        stomp_client(broker) as client,
        stomp_client(broker) as publisher,
    ):
        client.write(
            b"".join(
                b"SUBSCRIBE\nid:%d\ndestination:/queue/%d\nreceipt:%d\n\n\0" % (n, n, n)
                for n in range(number)
            )
        )
        assert {(await client.read()).headers["receipt-id"] for _ in range(number)} == set(
            map(str, range(number))
        )
        assert sum(b"RECEIPT" in frame for frame in said) <= number // 4, "those of a turn go together"
        asked.clear()
        publisher.write(b"".join(b"SEND\ndestination:/queue/%d\n\n%d\0" % (n, n) for n in range(number)))
        assert {(await client.read()).headers["subscription"] for _ in range(number)} == set(
            map(str, range(number))
        )
        assert number <= len(asked) < 20 * number, "and not each queue at each message"


async def test_a_queue_reads_only_those_sealed_segments_that_have_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, walk = set[str](), log_reader.scan_batches

    def noted(source: SegmentSource, offset: int, end: int, max_bytes: int) -> BatchScan:
        read.add(source.file.path.name)
        return walk(source, offset, end, max_bytes)

    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as publisher:
        for number in range(6):  # of 1 MiB each
            if number == 2:
                await publisher.send_with_receipt("SEND", b"waits", destination="/queue/old")
            await publisher.send_with_receipt("SEND", b"x" * 1_000_000, destination="/topic/other")
    monkeypatch.setattr(log_reader, "scan_batches", noted)
    async with (
        running_broker(tmp_path, stomp_policy()) as broker,
        stomp_client(broker) as client,
        stomp_client(broker) as publisher,
    ):
        names = [one.path.name for one in broker.engine.journal.segments()]
        assert len(names) > 4
        read.clear()  # the newest was read at the start
        await client.send_with_receipt("SUBSCRIBE", id="new", destination="/queue/new")
        await publisher.send_with_receipt("SEND", b"first", destination="/queue/new")
        assert (await client.read()).body == b"first"
        assert not read.intersection(names[:-1]), "none of them has the new queue's topic"
        await client.send_with_receipt("SUBSCRIBE", id="old", destination="/queue/old")
        assert (await client.read()).body == b"waits"
        await until(lambda: all(not one.behind for one in broker.engine.durables.list_entries()))
        assert len(read.intersection(names[:-1])) == 1, "and one has the old one's"


async def test_booleans_in_the_spelling_of_python_clients_are_obeyed(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, stomp_policy()) as broker,
        stomp_client(broker) as client,
    ):
        await client.send_with_receipt("SEND", b"never", destination=JOBS)
        await client.send_with_receipt(
            "SUBSCRIBE", id="1", destination=JOBS, ack="client", durable="True", auto_delete="False"
        )
        client.send("NACK", id=(await client.read()).headers["ack"], requeue="False")
        await client.send_with_receipt("SUBSCRIBE", id="2", destination="/queue/dead.jobs")
        assert (await client.read()).body == b"never"
        await client.send_with_receipt("SUBSCRIBE", id="3", destination="/topic/a", durable="True")
        assert len(await ask(broker, "durables")) == 3
        client.send("SUBSCRIBE", id="4", destination=JOBS, browser="True", receipt="r")
        error = await client.read_error()
        assert (error.headers["message"], error.headers["x-sluice-header"]) == ("not_supported", "browser")


async def test_a_durable_subscription_with_a_name_needs_a_client_id(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        client.send("SUBSCRIBE", id="1", destination="/topic/a", durable_subscription_name="d", receipt="r")
        error = await client.read_error()
        assert (error.headers["message"], error.headers["x-sluice-header"]) == ("bad_command", "client-id")
        assert not broker.engine.position_store.durables


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_a_requeue_that_is_not_understood_is_refused(tmp_path: Path, in_transaction: bool) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        await client.send_with_receipt("SEND", b"1", destination=JOBS)
        await client.send_with_receipt("SUBSCRIBE", id="1", destination=JOBS, ack="client")
        found = await client.read()
        more = {"transaction": "t"} if in_transaction else {}
        if more:
            client.send("BEGIN", **more)
        client.send("NACK", id=found.headers["ack"], requeue="no", receipt="r", **more)
        error = await client.read_error()
        assert (error.headers["message"], error.headers["receipt-id"]) == ("bad_command", "r")
