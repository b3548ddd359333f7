"""Whether a dropped WebSocket client received its notice: yes, unknown, no.

Against a real broker process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import websockets

from broker_core.client import AsyncClient
from broker_core.config import PolicyDocument, TransportSettings
from tests.support.rules import policy_with, rule
from tests.support.transports_process import broker_process


def policy(*rules: dict[str, Any]) -> PolicyDocument:
    made = policy_with(*rules)
    return replace(made, transports=(*made.transports, TransportSettings("websocket", "websocket", 0)))


async def next_command(socket: Any, what: str) -> dict[str, Any]:
    """Return the next command of this type."""
    async with asyncio.timeout(10):
        async for frame in socket:
            if isinstance(frame, str):
                command: dict[str, Any] = json.loads(frame)
                if what in (command["c"], command.get("ack")):
                    return command
    raise AssertionError(f"closed before {what}")


class WebSocketScenario:
    """A WebSocket client, a publisher, and the decisions."""

    def __init__(self, socket: Any, writer: AsyncClient, decisions: Any) -> None:
        self.socket, self.writer, self._decisions = socket, writer, decisions

    async def notice_outcome(self) -> str:
        async with asyncio.timeout(15):
            async for message in self._decisions:
                return str(json.loads(message.body)["told"])
        raise AssertionError("no decision")


@asynccontextmanager
async def slow_websocket(one: dict[str, Any], **subscribe: Any) -> AsyncIterator[WebSocketScenario]:
    with broker_process(policy(one)) as ports:
        async with AsyncClient(f"tcp://127.0.0.1:{ports['tcp']}", "writer") as writer:
            decisions = await writer.subscribe("$SLUICE.decisions", bookmark="0")
            async with websockets.connect(
                f"ws://127.0.0.1:{ports['websocket']}/", max_queue=4, close_timeout=1
            ) as socket:
                await socket.send(json.dumps({"c": "logon", "name": "slow"}))
                await next_command(socket, "processed")
                await socket.send(json.dumps({"c": "subscribe", "id": "s", "topic": "t", **subscribe}))
                await next_command(socket, "processed")
                yield WebSocketScenario(socket, writer, decisions)


@pytest.mark.parametrize(("answers", "told"), [(True, "yes"), (False, "unknown")])
async def test_a_client_that_reads_the_notice_says_so_or_it_stays_unknown(answers: bool, told: str) -> None:
    async with slow_websocket(rule("disconnect"), ack="client", prefetch=2) as there:
        for number in range(20):
            await there.writer.publish_many("t", [b"%d" % number])
        notice = await next_command(there.socket, "notice")
        if answers:
            await there.socket.send(json.dumps({"c": "told", "decision": notice["decision"]}))
        assert (await next_command(there.socket, "closing"))["code"] == "slow_client_backlog"
        assert await there.notice_outcome() == told
        with pytest.raises(websockets.ConnectionClosed):
            while True:
                await asyncio.wait_for(there.socket.recv(), 10)
        assert 4_000 <= there.socket.close_code < 5_000


@pytest.mark.serial
async def test_a_client_whose_connection_accepts_nothing_was_not_notified() -> None:
    full = {
        "name": "full",
        "signal": "outbound_bytes",
        "limit": 4_000_000,
        "ladder": [{"action": "disconnect"}],
    }
    async with slow_websocket(full) as there:
        there.socket.transport.pause_reading()  # else a delayed library would read on after the decision
        for _ in range(60):  # the client reads nothing, so kernel and broker buffers fill
            await there.writer.publish_many("t", [b"x" * 10_000] * 40)
        assert await there.notice_outcome() == "no"
