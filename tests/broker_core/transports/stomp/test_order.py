"""Frames of one write take effect in their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.brokers import running_broker, until
from tests.support.stomp_client import StompClient, stomp_client, stomp_policy


def send(body: bytes, *lines: bytes) -> bytes:
    return (
        b"SEND\n"
        + b"".join(line + b"\n" for line in (b"destination:/topic/t", *lines))
        + b"\n"
        + body
        + b"\0"
    )


SUBSCRIBE = b"SUBSCRIBE\nid:1\ndestination:/topic/t\n\n\0"
DURABLE = b"SUBSCRIBE\nid:1\ndestination:/topic/t\ndurable:true\n\n\0"
BEFORE, AFTER = send(b"before"), send(b"after")
IN_TRANSACTION = send(b"before", b"transaction:x")


async def read_to_receipt(client: StompClient, receipt: str) -> list[bytes]:
    """Return the bodies of the messages that come before a receipt."""
    bodies = []
    while (frame := await client.read()).headers.get("receipt-id") != receipt:
        if frame.command == "MESSAGE":
            bodies.append(frame.body)
    return bodies


UNJOURNALED_TOO = {
    "plain": BEFORE + SUBSCRIBE + AFTER,
    "commit": b"BEGIN\ntransaction:x\n\n\0"
    + IN_TRANSACTION
    + b"COMMIT\ntransaction:x\n\n\0"
    + SUBSCRIBE
    + AFTER,
    "second": b"SUBSCRIBE\nid:2\ndestination:/topic/u\n\n\0" + BEFORE + SUBSCRIBE + AFTER,
}
WRITES = UNJOURNALED_TOO | {
    "from next": BEFORE + SUBSCRIBE.replace(b"\n\n", b"\nx-stream-offset:next\n\n") + AFTER,
    "durable": BEFORE + DURABLE + AFTER,
    "durable anew": DURABLE + b"UNSUBSCRIBE\nid:1\ndurable:true\n\n\0" + BEFORE + DURABLE + AFTER,
}


@pytest.mark.parametrize(
    ("write", "topic"),
    [*((one, b"/topic/t") for one in WRITES), *((one, b"/topic/scratch.t") for one in UNJOURNALED_TOO)],
)
async def test_a_subscription_gets_what_is_sent_between_its_begin_and_end(
    tmp_path: Path, write: str, topic: bytes
) -> None:
    frames = WRITES[write].replace(b"/topic/t", topic)
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        for _ in range(3):
            more = b"durable:true\n" if b"durable" in frames else b""
            client.write(frames)
            client.write(b"UNSUBSCRIBE\nid:1\nreceipt:r\n" + more + b"\n\0" + BEFORE)
            assert await read_to_receipt(client, "r") == [b"after"]
            if b"id:2" in frames:
                await client.send_with_receipt("UNSUBSCRIBE", id="2")


@pytest.mark.parametrize("size", [4, 3_000_000])
async def test_a_disconnect_does_not_overtake_its_clients_own_messages(tmp_path: Path, size: int) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        client.write(SUBSCRIBE + send(b"x" * size) * 5 + b"DISCONNECT\nreceipt:bye\n\n\0")
        assert list(map(len, await read_to_receipt(client, "bye"))) == [size] * 5
        with pytest.raises(EOFError):
            await client.read()


async def test_a_subscription_that_is_refused_behind_a_message_names_its_receipt(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        client.write(send(b"x", b"receipt:sent"))
        client.send("SUBSCRIBE", id="1", destination="/topic/t", selector="(((", receipt="bad")
        client.send("SEND", b"never", destination="/topic/never")
        assert (await client.read()).headers["receipt-id"] == "sent"
        error = await client.read_error()
        assert (error.headers["message"], error.headers["receipt-id"]) == ("bad_selector", "bad")
        assert not broker.engine.journal.may_contain_topic("never", 1)


SENDS = b"".join(send(b"%d" % number, b"receipt:r%d" % number) for number in range(10))
RECEIPTS = [f"r{number}" for number in range(10)]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (b"NOPE\n\n\0", "unknown_command"),
        (b"SEND\nno colon\n\n\0", "bad_frame"),
        (b"SEND\ndestination:/topic/t\ncontent-length:999999999\n\n\0", "frame_too_large"),
        (b"SEND\ndestination:/topic/a b\n\n\0", "bad_topic"),
        (b"SEND\n\nx\0", "bad_command"),
        (b"ACK\nid:nonsense\n\n\0", "bad_ack"),
        (b"COMMIT\ntransaction:none\n\n\0", "bad_transaction"),
        (b"SUBSCRIBE\nid:1\ndestination:/topic/a..b\n\n\0", "bad_pattern"),
        (b"CONNECT\naccept-version:1.2\n\n\0", "bad_logon"),
    ],
)
async def test_what_succeeded_is_answered_before_the_error(tmp_path: Path, bad: bytes, code: str) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        client.write(SENDS + bad + send(b"behind", b"receipt:behind").replace(b"/t\n", b"/behind\n"))
        assert [(await client.read()).headers["receipt-id"] for _ in range(10)] == RECEIPTS
        assert (await client.read_error()).headers["message"] == code
        assert not broker.engine.journal.may_contain_topic("behind", 1)


async def test_a_deletion_is_answered_before_the_error(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        client.write(
            DURABLE
            + b"UNSUBSCRIBE\nid:1\ndurable:true\nreceipt:one\n\n\0"
            + DURABLE
            + b"UNSUBSCRIBE\nid:1\n\n\0"
            + b"UNSUBSCRIBE\nid:1\ndestination:/topic/t\ndurable:true\nreceipt:two\n\n\0NOPE\n\n\0"
        )
        assert [(await client.read()).headers["receipt-id"] for _ in range(2)] == ["one", "two"]
        assert (await client.read_error()).headers["message"] == "unknown_command"


async def test_receipts_behind_unread_messages_come_before_the_error(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        client.write(SUBSCRIBE + b"".join(send(b"x" * 4_000_000, b"receipt:last") for _ in range(4)))
        await until(lambda: broker.engine.frontier.durable >= 4)
        client.write(b"BEGIN\ntransaction:t\nreceipt:begun\n\n\0NOPE\n\n\0")
        found = []
        while (frame := await client.read()).command != "ERROR":
            found.append(frame.headers.get("receipt-id"))
        assert "begun" in found and frame.headers["message"] == "unknown_command"
