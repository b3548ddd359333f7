"""`kill -9` of a real broker under load at random times: every record acknowledged as persisted is there,
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from pathlib import Path

import pytest

from broker_core import batch
from broker_core.client import AsyncClient
from broker_core.errors import SluiceError
from broker_core.protocols.native import (
    COMMAND,
    PUBLISH,
    encode_command,
    encode_frame_header,
)
from broker_core.protocols.replies import Ack, ClosingNotice, parse_reply
from tests.support.broker_process import start_broker
from tests.support.frames import FedReader

pytestmark = pytest.mark.slow
KILLS = 50
SESSION = 7
"""Publisher session of all lives: without it the broker refuses numbers that it has stored."""


class Publisher:
    """A publisher of numbered batches that records acknowledgements and resumes after a crash."""

    def __init__(self) -> None:
        self.acknowledged = 0

    async def run(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        frames = FedReader()
        writer.write(encode_command({"c": "logon", "name": "publisher", "session": SESSION}))
        sending: asyncio.Task[None] | None = None
        try:
            while data := await reader.read(1 << 16):
                for frame in frames.feed(data):
                    reply = parse_reply(frame.payload) if frame.kind == COMMAND else None
                    assert not isinstance(reply, ClosingNotice), reply
                    if isinstance(reply, Ack) and reply.of == "logon":
                        # The broker may know more than was acknowledged, and never less.
                        assert (reply.sequence or 0) >= self.acknowledged
                        sending = asyncio.create_task(self._send(writer))
                    elif isinstance(reply, Ack) and reply.ack == "persisted":
                        self.acknowledged = max(self.acknowledged, reply.sequence or 0)
        finally:
            if sending is not None:
                sending.cancel()
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        first = self.acknowledged + 1
        while True:
            count = random.randint(1, 40)
            bodies = [b'{"n":%d}' % number for number in range(first, first + count)]
            built = batch.build_single_topic_batch("publisher", "load", bodies, first)
            writer.write(encode_frame_header(PUBLISH, 0, len(built)) + built)
            await writer.drain()
            first += count
            await asyncio.sleep(0)


async def replayed(port: int, number: int) -> list[bytes]:
    """Return the first `number` records from EPOCH."""
    async with AsyncClient(f"tcp://127.0.0.1:{port}", "checker") as client:
        subscription = await client.subscribe("load", bookmark="0")
        bodies: list[bytes] = []
        async with asyncio.timeout(60):
            async for found in subscription.batches():
                bodies += found.bodies()
                if len(bodies) >= number:
                    break
        return bodies


async def kill_at_a_random_moment(home: Path, publisher: Publisher) -> None:
    process, port = await asyncio.to_thread(start_broker, home)
    load = asyncio.create_task(publisher.run(port))
    await asyncio.sleep(random.uniform(0.02, 0.3))
    process.kill()
    process.join()
    with contextlib.suppress(OSError, SluiceError):
        await load


async def test_every_persisted_record_is_replayed_once_and_in_order_after_fifty_kills() -> None:
    random.seed()
    publisher = Publisher()
    with tempfile.TemporaryDirectory(prefix="sluice-kill-") as home:
        for _ in range(KILLS):
            await kill_at_a_random_moment(Path(home), publisher)
        assert publisher.acknowledged > KILLS, "hardly anything was published between the kills"
        process, port = start_broker(Path(home))
        try:
            bodies = await replayed(port, publisher.acknowledged)
        finally:
            process.terminate()
            process.join()
    # Also what was written and not acknowledged may be there: still once, and in order.
    assert bodies == [b'{"n":%d}' % number for number in range(1, len(bodies) + 1)]
