"""A machine that is suspended with its broker and its clients."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from broker_core.client import AsyncClient
from tests.support.broker_process import start_broker

pytestmark = pytest.mark.slow


async def test_nobody_loses_a_connection_for_the_time_in_which_everybody_was_stopped(tmp_path: Path) -> None:
    process, port = await asyncio.to_thread(start_broker, tmp_path)
    try:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    AsyncClient(f"tcp://127.0.0.1:{port}", f"c{ms}", heartbeat_ms=ms)
                )
                for ms in (1_000, 2_000)
            ]
            await asyncio.sleep(1.5)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(8)  # noqa: ASYNC251 (this process stands still too, with the clients' event loop)
            os.kill(process.pid, signal.SIGCONT)
            await asyncio.sleep(3)
            assert [one.connections for one in clients] == [1, 1]
    finally:
        process.kill()
        process.join()
