"""Commands sent together with the one that ends the connection have no effect and leave no state."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from structlog.testing import capture_logs

from broker_core.broker import Broker
from broker_core.protocols.native import encode_command
from tests.support.brokers import running_broker, until


async def _client_closed_for_flooding(broker: Broker) -> None:
    port = broker.statistics.transports[0]["port"]
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, encode_command({"c": "logon", "name": "asks"}))
        await until(lambda: "asks" in broker.engine.roster.clients)
        member = broker.engine.roster.clients["asks"]

        async def ask_on() -> None:
            number = 0
            while True:
                number += 1
                asked = [
                    {"c": "subscribe", "id": str(number), "topic": f"t.{number}"},
                    {"c": "unsubscribe", "id": str(number - 1)},
                ]
                await loop.sock_sendall(client, b"".join(map(encode_command, asked)))

        asking = asyncio.create_task(ask_on())
        await until(lambda: member.is_closed)
        asking.cancel()
        await asyncio.wait([asking])


async def test_a_client_that_never_reads_leaves_no_subscription_behind(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        with capture_logs() as said:
            await _client_closed_for_flooding(broker)
        await until(lambda: "asks" not in broker.engine.roster.clients)
        assert list(broker.engine.subscriptions.registry) == []
        assert "command_failed" not in [line["event"] for line in said]
