"""Publisher of the flights. It continues where it stopped, and publishes nothing twice.

The publish store numbers the published messages and survives the process. Flight n of the year is number n
in the store. So the store tells which flight is next, also after a crash, and the broker drops repeated
flights.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from broker_core.client import AsyncClient, FilePublishStore
from broker_core.safe_text import say
from demo.flights import Flights, load
from demo.pace import Pace, Rate, Speed

NAME = "demo-feed"
TURN_S = 0.02
MOST_A_TURN = 2000
REPORT_S = 10.0


async def run(address: str, store_path: Path, *, rate: float | None, speed: float | None) -> None:
    """Publish until the year is over, then flush.

    `rate`: flights a second; `speed`: a multiple of their real pace.
    """
    flights = load()
    store_path.parent.mkdir(parents=True, exist_ok=True)
    store = FilePublishStore(store_path)
    first = store.last_sequence % len(flights)
    async with AsyncClient(address, NAME, publish_store=store) as client:
        start = time.monotonic()
        pace: Pace = (
            Speed(speed, flights.moments, first, start) if speed else Rate(rate or 1000.0, first, start)
        )
        say(f"{len(flights):,} flights; going on with number {first + 1:,}")
        await publish(client, flights, pace, first)
        await client.flush()
    say(f"all {len(flights):,} flights are published and acknowledged")


async def publish(client: AsyncClient, flights: Flights, pace: Pace, sent: int) -> None:
    """Publish from flight `sent` on, each when it is due."""
    reported = time.monotonic()
    while sent < len(flights):
        now = time.monotonic()
        until = min(pace.due(now, sent), len(flights), sent + MOST_A_TURN)
        for number in range(sent, until):
            await client.publish(*flights.topic_and_message(number))
        sent = max(sent, until)
        if now - reported >= REPORT_S:
            reported = now
            _, newest = flights.topic_and_message(max(sent - 1, 0))
            say(f"{sent:,} flights published; newest: {newest.decode()}")
        await asyncio.sleep(TURN_S)
