"""A tab of the console with thousands of clients.

    python -m bench.feed --broker tcp://127.0.0.1:9007 --operator maria

Real, subscribed connections to a running Sluice (`make up`). The operator's password is read from
SLUICE_PASSWORD. A tab of Chromium then shows the clients' page. Figures: the time to its first row, bytes a
second of its WebSocket, the time from a key in the search to the updated list, and the browser's tasks over
50 ms. Some clients receive a record a second, so that rows change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page, WebSocket, sync_playwright

from broker_core.client import AsyncClient
from broker_core.protocols.native import encode_command

CHROMIUM = os.environ.get("SLUICE_CHROMIUM", "/usr/bin/chromium")
A_PROCESS, AT_ONCE = 5_000, 50
MOVING = 200
"""Clients of a process that share the topic on which a record arrives each second."""
# Each search shows another number of clients.
SEARCHES = ("crowd-0", "crowd-00", "crowd-001", "crowd-0012", "crowd-", "crowd-01")
WATCH = """() => {
  window.__long = [];
  new PerformanceObserver(\
(list) => window.__long.push(...list.getEntries().map((one) => one.duration))\
).observe({ entryTypes: ["longtask"] });
}"""
TYPE = """async (text) => {
  const field = document.querySelector("#search"), \
shown = document.querySelector("#shown"), before = shown.textContent, at = performance.now();
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  while (shown.textContent === before && performance.now() - at < 10_000) \
await new Promise(requestAnimationFrame);
  return performance.now() - at;
}"""


async def connect(broker: str, first: int, number: int) -> None:
    """Keep connections open; each reads and drops everything."""
    at, source_address = (
        urlsplit(broker),
        f"127.0.0.{2 + first // A_PROCESS}",
    )  # an instance accepts 10,000 connections from one address
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(index: int) -> asyncio.StreamWriter:
        async with slots:
            reader, writer = await asyncio.open_connection(
                at.hostname, at.port, limit=4_096, local_addr=(source_address, 0)
            )
            topic = "crowd.moving" if index < first + MOVING else "crowd.still"
            writer.write(encode_command({"c": "logon", "name": f"crowd-{index:05d}"}))
            writer.write(encode_command({"c": "subscribe", "id": "s", "topic": topic}))
            await reader.read(1)
        drains.append(asyncio.create_task(drain(reader)))
        return writer

    async def drain(reader: asyncio.StreamReader) -> None:
        while await reader.read(4_096):
            pass

    drains: list[asyncio.Task[None]] = []
    writers = await asyncio.gather(*(one(index) for index in range(first, first + number)))
    async with AsyncClient(broker, f"crowd-publisher-{first}") as client:
        print(json.dumps({"connected": len(writers)}), flush=True)
        while True:
            await client.publish("crowd.moving", b'{"at": 1}')
            await asyncio.sleep(1)


def measure_tab(address: str, operator: str, password: str, seconds: float) -> dict[str, Any]:
    """Measure one tab."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--no-first-run"]
        )
        page = browser.new_page(base_url=address, viewport={"width": 1440, "height": 900})
        page.set_default_timeout(60_000)
        received: list[int] = []
        page.on("websocket", lambda socket: _count(socket, received))
        page.goto("/login/")
        page.get_by_label("Username").fill(operator)
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Log in").click()
        page.locator("#feed").wait_for()
        requested_at = time.perf_counter()
        page.goto("/clients/", wait_until="commit")
        page.locator("#clients tbody tr[data-name]").first.wait_for()
        first_row = time.perf_counter() - requested_at
        page.evaluate(WATCH)
        received.clear()
        page.wait_for_timeout(1_000 * seconds)
        steady, resting = sum(received) / seconds, _long(page)
        keys = [float(page.evaluate(TYPE, text)) for text in SEARCHES]
        found = {
            "first_row_ms": 1_000 * first_row,
            "bytes_a_second": steady,
            "key_ms_median": statistics.median(keys),
            "key_ms_worst": max(keys),
            "long_tasks_at_rest": len(resting),
            "longest_task_ms": max([*resting, *_long(page), 0.0]),
            "shown": page.locator("#shown").inner_text(),
        }
        browser.close()
        return found


def _long(page: Page) -> list[float]:
    return [float(one) for one in page.evaluate("window.__long.splice(0)")]


def _count(socket: WebSocket, received: list[int]) -> None:
    socket.on("framereceived", lambda payload: received.append(len(payload)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.feed", description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--broker", default="tcp://127.0.0.1:9007", help="its TCP transport (%(default)s)")
    parser.add_argument("--console", default="http://127.0.0.1:8000", help="(%(default)s)")
    parser.add_argument("--operator", default="operator", help="who logs in (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="how long bytes are counted (%(default)s)"
    )
    parser.add_argument("--role", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    if options.role:
        asyncio.run(connect(options.broker, *options.role))
        return
    parts = [
        (first, min(A_PROCESS, options.clients - first)) for first in range(0, options.clients, A_PROCESS)
    ]
    crowds = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.feed", "--broker", options.broker, "--role", *map(str, part)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for part in parts
    ]
    try:
        began = time.perf_counter()
        for crowd in crowds:
            assert crowd.stdout is not None
            if not crowd.stdout.readline():
                raise SystemExit("the clients could not connect; see the broker's log")
        print(f"{options.clients:,} clients connected in {time.perf_counter() - began:.0f} s", flush=True)
        found = measure_tab(options.console, options.operator, os.environ["SLUICE_PASSWORD"], options.seconds)
    finally:
        for crowd in crowds:
            crowd.kill()
            crowd.wait()
    for key, value in found.items():
        print(f"{key:20} {value if isinstance(value, str) else f'{value:,.0f}'}")


if __name__ == "__main__":
    main()
