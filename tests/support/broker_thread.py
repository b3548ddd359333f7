"""A real broker on a thread of its own, behind the control socket that the console calls.

For tests that use the database.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from broker_core.broker import Broker
from broker_core.config import PolicyDocument
from broker_core.control.tls_listener import ControlLinkSettings
from tests.support.brokers import running_broker


class BrokerThread:
    """A running broker on a thread; `run` executes a coroutine on its loop."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker, self._loop = broker, loop

    def run(self, work: Coroutine[Any, Any, Any], seconds: float = 30) -> Any:
        """Run a coroutine on the broker's loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)


@contextmanager
def broker_thread(
    home: Path, policy: PolicyDocument, socket: Path, link: ControlLinkSettings | None = None
) -> Iterator[BrokerThread]:
    """Run a broker with this policy until the block ends.

    `socket` is the path of the control socket that the console uses; `link` sets up the control link.
    """
    ready, ended = threading.Event(), asyncio.Event()
    made: list[BrokerThread] = []

    async def serve() -> None:
        async with running_broker(home, policy, link=link) as broker:
            made.append(BrokerThread(broker, asyncio.get_running_loop()))
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: uvloop.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(20), "the broker did not start"
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    socket.symlink_to(made[0].broker.paths.control)
    try:
        yield made[0]
    finally:
        socket.unlink(missing_ok=True)
        made[0]._loop.call_soon_threadsafe(ended.set)
        thread.join(20)
