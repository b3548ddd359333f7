"""STOMP over the WebSocket transport of a real broker process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import websockets

from broker_core.config import TransportSettings
from tests.support.brokers import tcp_policy
from tests.support.transports_process import broker_process

CONNECT = "CONNECT\naccept-version:1.2\nhost:x\n\n\0"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    policy = replace(tcp_policy(), transports=(TransportSettings("stomp-ws", "stomp-ws", 0),))
    with broker_process(policy) as ports:
        yield f"ws://127.0.0.1:{ports['stomp-ws']}"


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [
        (["v10.stomp", "v12.stomp", "v11.stomp"], "v12.stomp"),
        (["v11.stomp"], "v11.stomp"),
        (["soap"], None),
        (None, None),
    ],
)
async def test_the_best_subprotocol_that_is_offered_is_agreed_on(
    address: str, offered: Any, agreed: str | None
) -> None:
    async with websockets.connect(f"{address}/stomp", subprotocols=offered) as client:
        assert client.subprotocol == agreed
        await client.send(CONNECT)
        assert str(await client.recv()).startswith("CONNECTED\nversion:1.2\n")


@pytest.mark.parametrize("path", ["/stomp", "/ws", "/ws/", "/portfolio/websocket"])
async def test_text_is_answered_with_text_and_bytes_with_bytes(address: str, path: str) -> None:
    for kind in (str, bytes):
        said = (CONNECT[:9], CONNECT[9:], "SUBSCRIBE\nid:0\ndestination:/topic/a\n\n\0")
        async with websockets.connect(address + path) as client:
            for text in (*said, "SEND\ndestination:/topic/a\n\nbödy\0\n"):
                await client.send(text if kind is str else text.encode())
            assert isinstance(await client.recv(), kind)
            message = await client.recv()
            assert isinstance(message, kind)
            whole = message if isinstance(message, bytes) else message.encode()
            assert whole.startswith(b"MESSAGE\nsubscription:0\n") and whole.endswith("\n\nbödy\0".encode())


async def test_other_paths_are_refused(address: str) -> None:
    with pytest.raises(websockets.InvalidStatus):
        async with websockets.connect(f"{address}/other"):
            pass


async def test_an_error_is_said_and_the_connection_closed(address: str) -> None:
    async with websockets.connect(f"{address}/stomp") as client:
        await client.send(CONNECT)
        await client.recv()
        await client.send("SEND\ndestination:/topic/a b\nreceipt:r\n\n\0")
        error = str(await client.recv())
        assert error.startswith("ERROR\nmessage:bad_topic\nreceipt-id:r\n")
        with pytest.raises(websockets.ConnectionClosed):
            await client.recv()


async def test_a_disconnect_is_answered_before_the_close(address: str) -> None:
    async with websockets.connect(f"{address}/stomp") as client:
        await client.send(CONNECT)
        await client.recv()
        await client.send("DISCONNECT\nreceipt:bye\n\n\0")
        assert await client.recv() == "RECEIPT\nreceipt-id:bye\n\n\0"
        with pytest.raises(websockets.ConnectionClosedOK):
            await client.recv()


async def test_many_messages_come_whole_however_they_are_batched(address: str) -> None:
    async with websockets.connect(f"{address}/stomp") as client:
        await client.send(CONNECT.encode())
        await client.recv()
        await client.send(b"SUBSCRIBE\nid:0\ndestination:/topic/many\n\n\0")
        await client.send(
            b"".join(b"SEND\ndestination:/topic/many\n\n%d-%s\0" % (n, b"x" * 500) for n in range(1_000))
        )
        numbers: list[int] = []
        while len(numbers) < 1_000:
            message = await client.recv()
            assert isinstance(message, bytes) and message.startswith(b"MESSAGE\n") and message.endswith(b"\0")
            numbers += [
                int(body.partition(b"\n\n")[2].partition(b"-")[0]) for body in message.split(b"\0")[:-1]
            ]
        assert numbers == list(range(1_000))
