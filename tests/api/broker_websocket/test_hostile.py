"""Limits on clients that are not logged on, over native and STOMP WebSockets: foreign origins, unfinished
messages, large bodies.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.batch import build_single_topic_batch
from broker_core.client import AsyncClient
from broker_core.config import TransportSettings
from broker_core.connections.admission import BUFFER_BYTES
from broker_core.protocols.native import PUBLISH, encode_command, encode_frame_header
from tests.support.brokers import tcp_policy
from tests.support.transports_process import broker_process

DESK = "https://desk.example"
PATHS = {"websocket": "/", "stomp-ws": "/stomp"}
HALF = b"\x82\xfe\xea\x60" + bytes(4) + b"x" * 40_000
"""Two thirds of a binary message of 60,000 bytes, masked by nothing."""


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    policy = tcp_policy()
    websockets = tuple(TransportSettings(kind, kind, 0, origins=(DESK,)) for kind in PATHS)
    with broker_process(replace(policy, transports=(*policy.transports, *websockets))) as made:
        yield made


async def handshake(
    port: int, path: str, origin: str = ""
) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
    """Request a WebSocket upgrade; return the HTTP status and the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    )
    writer.write((head + (f"Origin: {origin}\r\n" if origin else "") + "\r\n").encode())
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    return int(answer.split()[1]), reader, writer


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize(
    ("origin", "status"), [("", 101), (DESK, 101), ("https://evil.example", 403), ("null", 403), ("own", 101)]
)
async def test_a_page_of_elsewhere_may_connect_only_when_it_is_named(
    ports: dict[str, int], kind: str, origin: str, status: int
) -> None:
    port = ports[kind]
    found, _, writer = await handshake(
        port, PATHS[kind], f"http://127.0.0.1:{port}" if origin == "own" else origin
    )
    assert found == status
    writer.close()


KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


async def test_an_upgrade_that_is_wrong_is_refused_and_raises_nothing(tmp_path: Path) -> None:
    policy = replace(tcp_policy(), transports=(TransportSettings("ws", "stomp-ws", 0),))
    heads = (
        "Sec-WebSocket-Version: 12\r\n" + KEY,
        "Sec-WebSocket-Version: x\r\n" + KEY,
        "Sec-WebSocket-Version: 13\r\n",
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n",
        KEY,
    )
    log = tmp_path / "log"
    with log.open("w") as file, broker_process(policy, log=file) as ports:
        for head in heads:
            reader, writer = await asyncio.open_connection("127.0.0.1", ports["ws"])
            request = "GET /stomp HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            writer.write((request + head + "\r\n").encode())
            answer = await asyncio.wait_for(reader.read(), 30)
            assert answer.startswith(b"HTTP/1.1 400 ")
            writer.close()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("kind", PATHS)
async def test_unfinished_messages_before_the_logon_have_one_budget_and_others_go_on(
    ports: dict[str, int], kind: str
) -> None:
    number = BUFFER_BYTES // 40_000 + 60
    open_: list[asyncio.StreamWriter] = []
    ended = 0

    async def hold() -> None:
        nonlocal ended
        try:
            _, reader, writer = await handshake(ports[kind], PATHS[kind])
            open_.append(writer)
            writer.write(HALF)
            while await reader.read(1 << 16):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        ended += 1

    holding = [asyncio.create_task(hold()) for _ in range(number)]
    async with AsyncClient(f"tcp://127.0.0.1:{ports['tcp']}", f"good-{kind}") as good:
        while ended < 30:
            await good.publish("a", "1")
            await good.flush()
        await good.publish("a", "1")
        await good.flush()
    for writer in open_:
        writer.transport.abort()
    await asyncio.wait(holding)
    # The broker has released the buffers, so another client may use one.
    _, reader, writer = await handshake(ports[kind], PATHS[kind])
    writer.write(HALF)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.3)
    writer.close()


@pytest.mark.parametrize("kind", PATHS)
async def test_a_request_that_arrives_byte_by_byte_is_closed_after_the_time_of_a_logon(
    ports: dict[str, int], kind: str
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", ports[kind])
    reading = asyncio.create_task(reader.read())
    async with asyncio.timeout(60):
        for byte in itertools.chain(b"GET / HTTP/1.1\r\n", itertools.cycle(b"A: b\r\n")):
            writer.write(bytes((byte,)))
            await asyncio.wait([reading], timeout=0.5)
            if reading.done():
                break
    assert isinstance(reading.exception(), ConnectionResetError) or reading.result() == b""
    writer.close()


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize(
    "head",
    ["Content-Length: 15000000", f"Content-Length: {'9' * 5_000}", "Transfer-Encoding: chunked"],
    ids=["long", "of many digits", "chunked"],
)
async def test_a_request_with_a_body_is_not_listened_to(ports: dict[str, int], kind: str, head: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", ports[kind])
    writer.write(f"POST / HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n".encode())
    try:
        assert await asyncio.wait_for(reader.read(), 30) == b""
    except ConnectionResetError:
        pass
    writer.close()


def masked(head: bytes, payload: bytes = b"") -> bytes:
    return head + bytes(4) + payload


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize(
    ("frame", "number"),
    [
        (masked(b"\x83\x80"), 1002),  # an unassigned opcode
        (b"\x82\x01x", 1002),  # not masked
        (masked(b"\x89\xfe\x00\x7e", bytes(126)), 1002),  # a ping of more than 125 bytes
        (masked(b"\xc2\x80"), 1002),  # a reserved bit
        (masked(b"\x09\x80"), 1002),  # a fragmented ping
        (masked(b"\x81\x82", b"\xc3\x28"), 1007),  # a text that is not UTF-8
    ],
)
async def test_who_breaks_the_rules_of_websockets_is_told_by_the_number_of_the_rfc(
    ports: dict[str, int], kind: str, frame: bytes, number: int
) -> None:
    _, reader, writer = await handshake(ports[kind], PATHS[kind])
    writer.write(frame + 100 * masked(b"\x82\x80"))
    async with asyncio.timeout(20):
        answer = await reader.read()
    assert answer[0] == 0x88 and int.from_bytes(answer[2:4]) == number
    assert len(answer) == 2 + answer[1] > 4, "the close frame has a reason, and nothing follows it"
    writer.close()


@pytest.mark.parametrize("kind", PATHS)
async def test_a_client_that_breaks_the_rules_is_told_too(ports: dict[str, int], kind: str) -> None:
    _, reader, writer = await handshake(ports[kind], PATHS[kind])
    logon = b"CONNECT\naccept-version:1.2\n\n\0" if kind == "stomp-ws" else b'{"c":"logon","name":"ruler"}'
    writer.write(masked(b"\x81" + bytes([0x80 | len(logon)]), logon))
    async with asyncio.timeout(20):
        said = await reader.read(65_536)
        assert b"CONNECTED" in said or b"processed" in said
        writer.write(masked(b"\x83\x80"))
        answer = await reader.read()
    assert b"\x88" in answer and (1002).to_bytes(2) in answer
    writer.close()


def masked_message(payload: bytes) -> bytes:
    """Return a binary message in one frame."""
    assert 126 <= len(payload) < 65_536
    return b"\x82\xfe" + len(payload).to_bytes(2) + bytes(4) + payload


@pytest.mark.parametrize("kind", PATHS)
async def test_a_peer_that_ends_its_input_without_a_close_frame_gets_its_answers(
    ports: dict[str, int], kind: str
) -> None:
    if kind == "websocket":
        batch = build_single_topic_batch("ends", "t.a", [b"x"], 1, 7)
        logon = encode_command({"c": "logon", "name": "ends", "session": 7})
        data = logon + encode_frame_header(PUBLISH, 0, len(batch)) + batch
        expected = [b'"processed"', b'"persisted"']
    else:
        sends = b"".join(b"SEND\ndestination:/topic/t\nreceipt:%d\n\nx\0" % number for number in range(9))
        data = b"CONNECT\naccept-version:1.2\n\n\0" + sends
        expected = [b"CONNECTED", *(b"receipt-id:%d\n" % number for number in range(9))]
    for _ in range(10):
        status, reader, writer = await handshake(ports[kind], PATHS[kind])
        assert status == 101
        writer.write(masked_message(data))
        writer.write_eof()
        received = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        assert [one for one in expected if one not in received] == []
        assert received.endswith(b"\x88\x02\x03\xe8"), "the last frame is a close frame"
