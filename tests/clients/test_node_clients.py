"""@stomp/stompjs and stompit under Node, as published, against a real broker process."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.config import TransportSettings
from tests.support.brokers import tcp_policy
from tests.support.transports_process import broker_process

NODE = Path(__file__).parent / "node"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("node") is None or not (NODE / "node_modules").exists(),
        reason="`make test` installs Node's clients",
    ),
]


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    kinds = ("stomp", "stomp-ws")
    policy = replace(tcp_policy(), transports=tuple(TransportSettings(kind, kind, 0) for kind in kinds))
    with broker_process(policy) as found:
        yield found


async def run_program(*words: str) -> list[str]:
    """Run a program that must succeed; return the lines it prints."""
    process = await asyncio.create_subprocess_exec(
        "node", *words, cwd=NODE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, (out.decode(), err.decode())
    return out.decode().splitlines()


@pytest.mark.parametrize("kind", ["text", "binary"])
async def test_stompjs_has_all_it_asks_for_and_is_back_after_an_error(
    ports: dict[str, int], kind: str
) -> None:
    said = await run_program("stompjs.mjs", f"ws://127.0.0.1:{ports['stomp-ws']}/ws", kind)
    assert said == [
        "connected 1.2",
        rf'message "grün\u0000" "c\nd\\" /topic/js.{kind}',
        "replayed blue",
        "committed one two",
        "still true",
        "error bad_selector 8",
        "connected 1.2",
        "bye",
    ]


async def test_stompit_fails_over_and_has_all_it_asks_for(ports: dict[str, int]) -> None:
    said = await run_program("stompit.cjs", str(ports["stomp"]))
    assert [line for line in said if line != "receipt"] == [
        "connected",
        "message zero red",
        "message one ",
        "message two ",
        "bye",
    ]
    assert said.count("receipt") == 1
