"""Misbehaving STOMP clients: errors by name, bounded memory, and no effect on other clients."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.connections import admission, inbox
from broker_core.protocols.native import BEFORE_LOGON
from broker_core.protocols.stomp.frames import StompFrame, StompFrameReader
from broker_core.transports.stomp import replies
from broker_core.transports.stomp.publishing import MAX_BYTES, MAX_FRAMES, MAX_OPEN, MAX_TOPICS
from tests.support.brokers import running_broker, until
from tests.support.stomp_client import StompClient, stomp_client, stomp_policy

CONNECT = b"CONNECT\naccept-version:1.2\n\n\0"


@asynccontextmanager
async def with_a_neighbour(home: Path) -> AsyncIterator[tuple[Broker, StompClient]]:
    """Run a broker with a client that must still receive its own messages at the end."""
    async with running_broker(home, stomp_policy()) as broker, stomp_client(broker) as neighbour:
        await neighbour.send_with_receipt("SUBSCRIBE", id="n", destination="/topic/n")
        yield broker, neighbour
        neighbour.send("SEND", b"still", destination="/topic/n")
        assert (await neighbour.read()).body == b"still"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS client's first words", "unknown_command"),
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "unknown_command"),
        (b"SEND\ndestination:/topic/a\n\nx\0", "not_logged_on"),
        (b"CONNECT\n" + b"x:y\n" * 20_000, "frame_too_large"),
        (CONNECT + b"SEND\ndestination:/topic/a\nfoo:a\0b\n\nx\0", "bad_frame"),
        (CONNECT + b"SEND\ndestination:/topic/a\ncontent-length:99999999999\n\n", "frame_too_large"),
        (CONNECT + b"SEND\ndestination:/topic/a\ncontent-length:1\n\nabc\0", "bad_frame"),
        (
            CONNECT + b"SUBSCRIBE\nid:1\ndestination:/topic/a\nselector:" + b"x" * 2**20 + b"\n\n\0",
            "frame_too_large",
        ),
        (
            CONNECT + b"SUBSCRIBE\nid:1\ndestination:/topic/a\nselector:" + b"(" * 5_000 + b"\n\n\0",
            "bad_selector",
        ),
        (CONNECT + b"SUBSCRIBE\nid:" + b"x" * 200 + b"\ndestination:/topic/a\n\n\0", "bad_command"),
        (CONNECT + b"SEND\ndestination:/topic/" + b"x" * 300 + b"\n\n\0", "bad_topic"),
        (b"CONNECT\naccept-version:1.2\nheart-beat:-1,x\n\n\0", "bad_command"),
        (CONNECT + b"BEGIN\ntransaction:t\n\n\0" * 2, "bad_transaction"),
        *(
            (
                CONNECT + b"SUBSCRIBE\nid:1\ndestination:/topic/a\n\n\0" + word + b"\nid:1-1\n\n\0",
                "bad_ack",
            )
            for word in (b"ACK", b"NACK")
        ),
    ],
)
async def test_what_is_wrong_is_said_by_name(tmp_path: Path, said: bytes, code: str) -> None:
    async with with_a_neighbour(tmp_path) as (broker, _), stomp_client(broker, "") as client:
        client.write(said)
        frame = await client.read()
        if said.startswith(CONNECT):
            assert frame.command == "CONNECTED"
            frame = await client.read()
        assert (frame.command, frame.headers["message"]) == ("ERROR", code)
        assert await asyncio.wait_for(client.reader.read(), 10) == b""


@pytest.mark.parametrize("kind", ["topic", "queue"])
async def test_ten_thousand_subscriptions_are_a_thousand_and_an_error(tmp_path: Path, kind: str) -> None:
    async with with_a_neighbour(tmp_path) as (broker, _), stomp_client(broker, client_id="c") as client:
        for number in range(10_000):
            client.send("SUBSCRIBE", id=number, destination=f"/{kind}/a.{number}", receipt=number)
        for number in range(1_000):
            assert (await client.read()).headers["receipt-id"] == str(number)
        error = await client.read_error()
        assert error.headers["message"] == "too_many_subscriptions"
        await until(lambda: "c" not in broker.engine.roster.clients)


async def test_transactions_that_never_end_are_bounded(tmp_path: Path) -> None:
    async with with_a_neighbour(tmp_path) as (broker, _):
        async with stomp_client(broker) as client:
            for number in range(MAX_OPEN + 1):
                client.send("BEGIN", transaction=number)
            assert (await client.read_error()).headers["message"] == "bad_transaction"
        for body, number in ((b"", MAX_FRAMES + 1), (b"x" * (MAX_BYTES // 3), 4)):
            async with stomp_client(broker) as client:
                client.send("BEGIN", transaction="t")
                for _ in range(number):
                    client.send("SEND", body, destination="/topic/a", transaction="t")
                assert (await client.read_error()).headers["message"] == "bad_transaction"
        assert not broker.engine.journal.may_contain_topic("a", 1)


async def test_open_transactions_have_one_bound_and_are_forgotten_with_their_connection(
    tmp_path: Path,
) -> None:
    async with with_a_neighbour(tmp_path) as (broker, _):
        async with stomp_client(broker) as client:
            for number in range(4):
                client.send("BEGIN", transaction=number)
                client.send("SEND", b"x" * (MAX_BYTES // 3), destination="/topic/a", transaction=number)
            assert (await client.read_error()).headers["message"] == "bad_transaction"
        async with stomp_client(broker, client_id="c") as client:
            await client.send_with_receipt("BEGIN", transaction="t")
            client.send("SEND", b"x" * 1_000_000, destination="/topic/a", transaction="t")
            held = broker.engine.roster.clients["c"].sink._session._sending.transactions  # type: ignore[attr-defined]
            await until(lambda: held.nbytes >= 1_000_000)
        await until(lambda: held.nbytes == 0)
        assert not broker.engine.journal.may_contain_topic("a", 1)
        async with stomp_client(broker) as client:  # what was read before it went counts
            client.send("BEGIN", transaction="t")
            client.send("SEND", b"x", destination="/topic/a", transaction="t")
            client.send("COMMIT", transaction="t")
        await until(lambda: broker.engine.journal.may_contain_topic("a", 1))


async def test_a_connect_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    async with with_a_neighbour(tmp_path) as (broker, _), stomp_client(broker, "") as client:
        (connection,) = (one for one in broker.engine.roster if not one.logged_on)
        heard = connection.liveness.last_alive_at
        client.write(b"CONNECT\nfoo:")
        client.write(b"x")
        await asyncio.sleep(0)
        await until(lambda: connection.sink._session.reader.buffered_bytes > 12)  # type: ignore[attr-defined]
        assert connection.liveness.last_alive_at == heard  # so that the ten seconds go on
        connection.liveness.last_alive_at -= 10_001
        assert (await client.read_error()).headers["message"] == "logon_timeout"


async def test_a_frame_before_the_logon_is_small(tmp_path: Path) -> None:
    async with with_a_neighbour(tmp_path) as (broker, _), stomp_client(broker, "") as client:
        client.write(b"CONNECT\nfoo:" + b"x" * BEFORE_LOGON)
        assert (await client.read()).headers["message"] == "frame_too_large"


async def test_a_large_frame_that_comes_together_with_connect_comes_after_the_logon(tmp_path: Path) -> None:
    async with with_a_neighbour(tmp_path) as (broker, _), stomp_client(broker, "") as client:
        client.write(CONNECT + b"SEND\ndestination:/topic/a\nreceipt:1\n\n" + b"x" * 2 * BEFORE_LOGON + b"\0")
        assert [(await client.read()).command for _ in range(2)] == ["CONNECTED", "RECEIPT"]


async def test_each_iteration_parses_only_the_frames_that_it_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The iteration's budget is over after each item: no further frame is parsed for it."""
    monkeypatch.setattr(inbox, "ITERATION_BUDGET_NS", 1)
    cut = 0
    most: list[int] = []

    def counting(reader: StompFrameReader) -> StompFrame | None:
        nonlocal cut
        cut += 1
        return cuts(reader)

    def turn(self: inbox.Inbox) -> None:
        nonlocal cut
        cut = 0
        hand_over(self)
        most.append(cut)

    cuts, hand_over = StompFrameReader.read_frames, inbox.Inbox._hand_over
    async with with_a_neighbour(tmp_path) as (broker, _), stomp_client(broker) as client:
        monkeypatch.setattr(StompFrameReader, "read_frames", counting)
        monkeypatch.setattr(inbox.Inbox, "_hand_over", turn)
        client.write(b"BEGIN\ntransaction:t\n\n\0ABORT\ntransaction:t\n\n\0" * 2_000)
        await client.send_with_receipt("SEND", destination="/topic/a")
        assert 1 <= max(most) <= 3


async def test_receipts_that_nobody_reads_are_bounded_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reply to a batch has a receipt for each SEND; without the bound they were 256 MB."""
    monkeypatch.setattr(replies, "MAX_UNREAD_BYTES", 100_000)
    send = b"SEND\ndestination:/topic/a\nreceipt:" + b"r" * 15_000 + b"\n\nx\0"
    async with with_a_neighbour(tmp_path) as (broker, _):
        async with stomp_client(broker, client_id="mute") as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.write(2_000 * send)
            await until(lambda: "mute" not in broker.engine.roster.clients)


async def test_transactions_that_never_end_have_one_budget_with_frames_that_arent_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "INPUT_BYTES", 25_000)
    async with with_a_neighbour(tmp_path) as (broker, _):
        async with stomp_client(broker) as first, stomp_client(broker) as second:
            for client in (first, second):
                await client.send_with_receipt("BEGIN", transaction="t")
            first.send("SEND", b"x" * 20_000, destination="/topic/a", transaction="t")
            await until(lambda: broker.engine.pending_connections.input >= 20_000)
            second.send("SEND", b"x" * 20_000, destination="/topic/a", transaction="t")
            assert (await second.read_error()).headers["message"] == "input_full"
            await first.send_with_receipt("COMMIT", transaction="t")
            await until(lambda: broker.engine.pending_connections.input == 0)


async def test_unfinished_frames_before_the_logon_share_the_budget_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "BUFFER_BYTES", 20_000)
    async with with_a_neighbour(tmp_path) as (broker, _):
        async with stomp_client(broker, "") as first, stomp_client(broker, "") as second:
            first.write(b"CONNECT\nfoo:" + b"x" * 10_000)
            await until(lambda: broker.engine.pending_connections.buffered >= 10_000)
            second.write(b"CONNECT\nfoo:" + b"x" * 10_000)
            assert (await second.read_error()).headers["message"] == "input_full"
            first.write(b"\naccept-version:1.2\n\n\0")
            assert (await first.read()).command == "CONNECTED"
            await until(lambda: broker.engine.pending_connections.buffered == 0)


async def test_after_the_logon_a_frame_may_be_large_and_is_forgotten_with_its_connection(
    tmp_path: Path,
) -> None:
    async with with_a_neighbour(tmp_path) as (broker, _):
        async with stomp_client(broker, client_id="c") as client:
            await client.send_with_receipt("SEND", b"x" * 4_000_000, destination="/topic/a")
            await until(lambda: broker.engine.pending_connections.input == 0)
            client.write(b"SEND\ndestination:/topic/a\n\n" + b"x" * 1_000_000)
            await until(lambda: broker.engine.pending_connections.input >= 1_000_000)
            sink = broker.engine.roster.clients["c"].sink
        await until(lambda: broker.engine.pending_connections.input == 0)
        assert sink._session.reader.buffered_bytes == 0, "although somebody still knows it"  # type: ignore[attr-defined]
        assert broker.engine.pending_connections.buffered == 0


async def test_heart_beats_of_a_millisecond_are_a_seconds(tmp_path: Path) -> None:
    async with with_a_neighbour(tmp_path) as (broker, _), stomp_client(broker, "") as client:
        assert (await client.connect(heart_beat="1,1")).headers["heart-beat"] == "1000,1000"


async def test_heart_beats_come_while_other_topics_have_traffic(tmp_path: Path) -> None:
    """A reader of the log that gets nothing is sent progress that STOMP has no frame for."""
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as publisher:
        async with stomp_client(broker, heart_beat="0,2000") as client:
            await client.send_with_receipt(
                "SUBSCRIBE", id="1", destination="/topic/quiet", x_sluice_bookmark="0"
            )

            async def publish() -> None:
                while True:
                    await publisher.send_with_receipt("SEND", b"x", destination="/topic/busy")
                    await asyncio.sleep(0.1)

            traffic = asyncio.create_task(publish())
            async with asyncio.timeout(30):
                assert await client.reader.readexactly(3) == b"\n" * 3
            traffic.cancel()


async def test_heart_beats_of_a_second_are_kept_by_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_a_neighbour(tmp_path) as (broker, _):
        monkeypatch.setattr(
            broker.engine, "tick", lambda: None
        )  # the look once a second isn't what keeps them
        async with stomp_client(broker, "") as client:
            await client.connect(heart_beat="1000,0")
            assert (await client.read_error()).headers["message"] == "heartbeat_timeout"
        async with stomp_client(broker, "") as client:
            await client.connect(heart_beat="0,1000")
            for _ in range(3):
                assert await asyncio.wait_for(client.reader.readline(), 30) == b"\n"


async def test_a_client_that_requests_and_never_reads_is_closed(tmp_path: Path) -> None:
    async with with_a_neighbour(tmp_path) as (broker, _), stomp_client(broker, client_id="c") as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        with pytest.raises((ConnectionError, TimeoutError)):
            async with asyncio.timeout(60):
                while "c" in broker.engine.roster.clients:
                    for _ in range(100):
                        client.send("BEGIN", transaction="t", receipt="r" * 8_000)
                        client.send("ABORT", transaction="t", receipt="r" * 8_000)
                    await client.writer.drain()
                raise ConnectionError
        assert "c" not in broker.engine.roster.clients


async def test_noise_of_a_thousand_kinds_harms_nobody(tmp_path: Path) -> None:
    dice = random.Random(14)
    words = [
        b"CONNECT\n",
        b"SEND\n",
        b"SUBSCRIBE\n",
        b"ACK\n",
        b"NACK\n",
        b"BEGIN\n",
        b"COMMIT\n",
        b"ABORT\n",
        b"UNSUBSCRIBE\n",
        b"DISCONNECT\n",
        b"destination:/topic/a\n",
        b"destination:/queue/a\n",
        b"destination:/exchange/a\n",
        b"id:1\n",
        b"id:1-1\n",
        b"id:9-9\n",
        b"transaction:t\n",
        b"ack:client\n",
        b"ack:client-individual\n",
        b"durable:true\n",
        b"selector:a\n",
        b"x-stream-offset:first\n",
        b"x-stream-offset:offset=9999999\n",
        b"receipt:r\n",
        b"content-length:3\n",
        b"\n",
        b"\n\n",
        b"\r\n",
        b"\0",
        b"abc",
        b"\\c\\",
        b"\xff",
        b"x-sluice-bookmark:[0:1)\n",
        b"x-sluice-rate:1\n",
        b"prefetch-count:1\n",
        b"heart-beat:0,0\n",
        b"message-id:1-1\n",
        b"client-id:x\n",
        b"browser:true\n",
        b"x-sluice-conflation:1s\n",
    ]
    async with with_a_neighbour(tmp_path) as (broker, _):
        for _ in range(300):
            async with stomp_client(broker, "") as client:
                if dice.random() < 0.9:
                    client.write(CONNECT)
                for _ in range(dice.randrange(12)):
                    client.write(
                        b"".join(dice.choices(words, k=dice.randrange(1, 9)))
                        + dice.choice([b"\n\0", b"\n\nabc\0", b""])
                    )
                client.writer.write_eof()
                answer = await asyncio.wait_for(client.reader.read(), 20)
                assert b"internal_error" not in answer
        await until(lambda: len(broker.engine.roster.connections) == 1)


async def test_a_transaction_of_more_topics_than_a_batch_names_is_refused_at_the_send_that_passes_it(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        for more in (0, 1):
            async with stomp_client(broker) as client:
                sends = b"".join(
                    b"SEND\ndestination:/topic/scratch.%d\ntransaction:t\nreceipt:%d\n\nx\0" % (n, n)
                    for n in range(MAX_TOPICS + more)
                )
                client.write(b"BEGIN\ntransaction:t\n\n\0" + sends)
                if more:
                    error = await client.read_error()
                    assert error.headers["message"] == "bad_transaction" and b"1,023 topics" in error.body
                    assert error.headers["receipt-id"] == str(MAX_TOPICS), "of the SEND, not of the COMMIT"
                else:
                    client.send("COMMIT", transaction="t", receipt="c")
                    receipts = [(await client.read()).headers["receipt-id"] for _ in range(MAX_TOPICS + 1)]
                    assert receipts[-1] == "c"
