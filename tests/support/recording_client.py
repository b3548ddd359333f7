"""A raw client that records deliveries and waits for the replies to its commands."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from broker_core.batch import Batch
from broker_core.broker import Broker
from broker_core.protocols.native import COMMAND, DELIVER
from tests.support.brokers import until
from tests.support.raw import RawClient


class RecordingClient:
    """A client that records deliveries.

    `deliveries` are (stream, sequence, body) in order; `delivered_at` are their times.
    """

    def __init__(self, raw: RawClient) -> None:
        self.raw = raw
        self.deliveries: list[tuple[int, int, bytes]] = []
        self.delivered_at: list[float] = []
        self.replies: list[dict[str, Any]] = []
        self._task = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def connect(cls, broker: Broker, name: str = "reader") -> RecordingClient:
        """Connect and log on."""
        return cls(await RawClient.connect(broker, name))

    async def _read(self) -> None:
        while (frame := await self.raw.next_frame(60)) is not None:
            if frame.kind == COMMAND:
                self.replies.append(json.loads(bytes(frame.payload)))
            elif frame.kind == DELIVER:
                records = list(Batch.parse(frame.payload).records())
                self.deliveries += [(frame.stream, record.sequence, record.body) for record in records]
                self.delivered_at += [time.monotonic()] * len(records)

    async def request(self, **command: Any) -> list[dict[str, Any]]:
        """Send a command and wait for its acknowledgements, or its error."""
        wanted, before = max(1, len(command.get("ids", []))), len(self.replies)
        self.raw.send_command(command)

        def answered() -> list[dict[str, Any]]:
            return [
                one
                for one in self.replies[before:]
                if one.get("of") == command["c"] and one.get("ack") != "completed"
            ]

        await until(lambda: len(answered()) >= wanted or any(one["c"] == "error" for one in answered()))
        return answered()

    def sequences_of(self, stream: int = 1) -> list[int]:
        """Return the sequences delivered on a stream."""
        return [sequence for of, sequence, _ in self.deliveries if of == stream]

    def completed_ids(self) -> list[str]:
        """Return the ids of subscriptions that the broker reported as completed."""
        return [one["id"] for one in self.replies if one.get("ack") == "completed"]

    def close(self) -> None:
        """Close the connection."""
        self._task.cancel()
        self.raw.close()
