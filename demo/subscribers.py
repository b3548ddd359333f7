"""Four subscribers of the flights.

A fast one, one with a filter, one that replays, one that stops reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from broker_core.client import EPOCH, AsyncClient, Subscription
from broker_core.errors import SluiceError
from broker_core.protocols.replies import DecisionNotice
from broker_core.safe_text import print_line

TOPIC = "flights.>"
DELAYED = "/dep_delay > 60"
REPORT_INTERVAL_S = 10.0
RETRY_DELAY_S = 5.0
REPLAY_PAUSE_S = 30.0
BUFFER_BYTES = 64 * 1024


@dataclass(slots=True)
class Counts:
    """Messages received so far, by subscriber."""

    by_subscriber: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, number: int) -> None:
        """Count messages of one subscriber."""
        self.by_subscriber[name] = self.by_subscriber.get(name, 0) + number


@dataclass(frozen=True, slots=True)
class Manners:
    """Behaviour of the slow subscriber: it reads for `reads_s` seconds, then stops reading for `stops_s`
    seconds.
    """

    reads_s: float = 20.0
    stops_s: float = 40.0


async def run(address: str, manners: Manners) -> None:
    """Run all four until cancelled. Each reconnects if the broker disconnects it."""
    counts = Counts()
    subscribers = {
        "demo-fast": lambda client: read_all(client, counts),
        "demo-delayed": lambda client: read_all(client, counts, DELAYED),
        "demo-replay": lambda client: replay(client, counts),
        "demo-slow": lambda client: read_and_stop(client, counts, manners),
    }
    async with asyncio.TaskGroup() as group:
        for name, behaviour in subscribers.items():
            group.create_task(_repeat_forever(address, name, behaviour))
        group.create_task(_report(counts))


async def read_all(client: AsyncClient, counts: Counts, filter: str | None = None) -> None:
    """Read everything immediately, batch by batch."""
    subscription = await client.subscribe(TOPIC, filter=filter)
    async for batch in subscription.batches():
        counts.add(client.name, batch.count)


async def replay(client: AsyncClient, counts: Counts) -> None:
    """Read the whole log from its beginning, pause, and repeat."""
    while True:
        subscription = await client.subscribe(TOPIC, bookmark=EPOCH)
        async for batch in subscription.batches(until_completed=True):
            counts.add(client.name, batch.count)
        await subscription.close()
        await asyncio.sleep(REPLAY_PAUSE_S)


async def read_and_stop(client: AsyncClient, counts: Counts, manners: Manners) -> None:
    """Read, then stop reading for a while.

    The client's credit runs out, so messages wait at the broker, where policy sees them.
    """
    subscription = await client.subscribe(TOPIC)
    while True:
        _print_line(f"{client.name} reads for {manners.reads_s:.0f} s")
        await _read_for(subscription, client.name, counts, manners.reads_s)
        _print_line(f"{client.name} stops reading for {manners.stops_s:.0f} s")
        await asyncio.sleep(manners.stops_s)


async def _read_for(subscription: Subscription, name: str, counts: Counts, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            while many := await subscription.next_batches():
                counts.add(name, sum(batch.count for batch, _ in many))
    except TimeoutError:
        pass


async def _repeat_forever(
    address: str, name: str, behaviour: Callable[[AsyncClient], Awaitable[None]]
) -> None:
    while True:
        try:
            async with AsyncClient(
                address, name, max_unread_bytes=BUFFER_BYTES, on_notice=_print_notice(name)
            ) as client:
                await behaviour(client)
        except SluiceError as error:
            _print_line(f"{name}: {error.code}: {error.sentence} It comes back in {RETRY_DELAY_S:.0f} s.")
        await asyncio.sleep(RETRY_DELAY_S)


async def _report(counts: Counts) -> None:
    while True:
        await asyncio.sleep(REPORT_INTERVAL_S)
        _print_line(
            "received " + ", ".join(f"{name} {number:,}" for name, number in counts.by_subscriber.items())
        )


def _print_notice(name: str) -> Callable[[DecisionNotice], None]:
    return lambda notice: _print_line(f"{name} is told {notice.code}: {notice.message}")


def _print_line(sentence: str) -> None:
    print_line(sentence)
