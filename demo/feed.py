"""Publisher of the flights, which continues where it stopped and publishes nothing twice.

The publish store numbers the published messages and survives the process. Flight n of the year has number n
in the store. So the store determines the next flight, also after a crash, and the broker drops repeated
flights.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from broker_core.client import AsyncClient, FilePublishStore
from broker_core.safe_text import print_line
from demo.flights import Flights, load
from demo.pace import Pace, Rate, Speed

NAME = "demo-feed"
PUBLISH_INTERVAL_S = 0.02
MAX_PER_INTERVAL = 2000
REPORT_INTERVAL_S = 10.0


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
        print_line(f"{len(flights):,} flights; going on with number {first + 1:,}")
        await publish(client, flights, pace, first)
        await client.flush()
    print_line(f"all {len(flights):,} flights are published and acknowledged")


async def publish(client: AsyncClient, flights: Flights, pace: Pace, sent: int) -> None:
    """Publish from flight `sent` on, each when it is due."""
    reported = time.monotonic()
    while sent < len(flights):
        now = time.monotonic()
        until = min(pace.due_count(now, sent), len(flights), sent + MAX_PER_INTERVAL)
        for number in range(sent, until):
            await client.publish(*flights.topic_and_message(number))
        sent = max(sent, until)
        if now - reported >= REPORT_INTERVAL_S:
            reported = now
            _, newest = flights.topic_and_message(max(sent - 1, 0))
            print_line(f"{sent:,} flights published; newest: {newest.decode()}")
        await asyncio.sleep(PUBLISH_INTERVAL_S)
