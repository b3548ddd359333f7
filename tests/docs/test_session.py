"""The session in docs/protocol.md, sent to a real broker's WebSocket: replies equal those of the page."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import websockets

from broker_core.client import AsyncClient
from broker_core.config import default_policy
from tests.support.transports_process import broker_process

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
PLACED = {"bookmark", "sequence"}
"""Fields that depend on earlier records of the log."""


def session() -> list[tuple[str, dict[str, Any]]]:
    """Return the page's lines: `>` and a command, `<` and a reply."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith(("> {", "< {"))]
    return [(line[0], json.loads(line[2:])) for line in lines]


def same(documented: dict[str, Any], received: dict[str, Any]) -> bool:
    return documented.keys() == received.keys() and all(
        key in PLACED or documented[key] == received[key] for key in documented
    )


async def test_what_is_typed_is_answered_as_the_page_says() -> None:
    with broker_process(
        default_policy("sluice-1", tcp_port=0, websocket_port=0, stomp_port=0, stomp_ws_port=0)
    ) as ports:
        async with AsyncClient(f"tcp://127.0.0.1:{ports['tcp']}", "before") as client:
            await client.publish_many("orders.eu", [{"id": 0, "amount": 7}, b'{"id":1,"amount":120}'])
            await client.flush()
        await _type(session(), f"ws://127.0.0.1:{ports['websocket']}/")


async def _type(steps: list[tuple[str, dict[str, Any]]], url: str) -> None:
    assert len(steps) > 8
    seen: list[dict[str, Any]] = []
    async with websockets.connect(url) as socket:
        for direction, line in steps:
            if direction == ">":
                await socket.send(json.dumps(line))
                continue
            # Answers of one command may come in either order, as a delivery and its acknowledgement do.
            async with asyncio.timeout(10):
                while not any(same(line, received) for received in seen):
                    seen.append(json.loads(await socket.recv()))
