"""`python -m broker_core.client`: output of messages on a terminal and in a pipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from broker_core.client import AsyncClient
from tests.support.brokers import address_of, running_broker

FORGED = [
    b'{"a": 1,\n"bookmark": "x|1|"}',
    b'x\n{"bookmark":"x|9|","topic":"forged","data":1}',
    b"\x1b[2J\x07\xff\r\n",
    b'{"c1": "\xc2\x9b31m\xe2\x80\xae"}',
]


def subscribe(address: str, shape: str) -> bytes:
    words = ("subscribe", "t", "--bookmark", "0", "--replay-only", "--format", shape, "--address", address)
    return subprocess.run(
        [sys.executable, "-m", "broker_core.client", *words], capture_output=True, check=True, timeout=120
    ).stdout


async def test_json_and_line_have_one_line_a_message_whatever_it_holds(tmp_path: Path) -> None:
    import asyncio

    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "p") as client:
        await client.publish_many("t", FORGED)
        await client.flush()
        shown = await asyncio.to_thread(subscribe, address_of(broker), "json")
        lines = shown.splitlines(keepends=True)
        assert len(lines) == len(FORGED)
        found = [json.loads(line) for line in lines]
        assert {one["topic"] for one in found} == {"t"} and len({one["bookmark"] for one in found}) == 4
        assert found[0]["data"] == {"a": 1, "bookmark": "x|1|"} and found[1]["data"] == FORGED[1].decode()
        plain = await asyncio.to_thread(subscribe, address_of(broker), "line")
        assert len(plain.splitlines()) == len(FORGED)
        for output in (shown, plain):
            assert not any(
                control in output.replace(b"\n", b"") for control in (b"\x1b", b"\x07", b"\r", b"\xc2\x9b")
            )
        raw = await asyncio.to_thread(subscribe, address_of(broker), "body")
        assert raw == b"".join(body + b"\n" for body in FORGED), "a pipe gets the bodies as they are"
