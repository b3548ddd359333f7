"""Two brokers with the topics cut between them, beside one with all: `python -m bench.several [--runs 3] [--records 1000000]`.

One publisher and one subscriber, each a process with an `AsyncGroups`; two topics, each with half of the records, of 100 bytes in
batches of 512. From the first publish to the last record received, and the processor's time of each side for each MB. On two CPUs
it is they that are the limit, of one broker as of two: what is to be read is what a record costs.

Figures are medians of the runs, which take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time

import uvloop
from rich.console import Console
from rich.table import Table

from bench import latency
from bench.processes import answer, broker, spent
from bench.roles import orders, say
from broker_core.client import AsyncGroups, Group

SIZE = 100
BATCH = 512
TOPICS = ("prices.eu", "orders.eu")
console = Console(stderr=True)


# Roles: `addresses` are of one broker with both topics, or of each topic's.


def _groups(addresses: list[str], name: str) -> AsyncGroups:

    if len(addresses) == 1:
        return AsyncGroups({"all": Group(">", addresses)}, name)
    return AsyncGroups({"prices": Group("prices.>", addresses[0]), "rest": Group(">", addresses[1])}, name)


async def publish(number: int, addresses: list[str]) -> None:
    async with _groups(addresses, "publisher") as client:
        bodies = orders(BATCH)
        started, before = time.monotonic(), time.process_time()
        for batch in range(number // BATCH):
            await client.publish_many(TOPICS[batch % 2], bodies)
        await client.flush()
        say(started=started, cpu=time.process_time() - before)


async def subscribe(number: int, addresses: list[str]) -> None:
    async with _groups(addresses, "subscriber") as client:
        subscription = await client.subscribe(">")
        say(ready=True)
        received, before = 0, time.process_time()
        async for found in subscription.batches():
            received += len(found.bodies())
            if received >= number:
                break
        say(last=time.monotonic(), cpu=time.process_time() - before)


def one_run(number: int, brokers: int) -> dict[str, float]:
    """Records a second, and the CPU of all brokers, of the publisher and of the subscriber in ms a MB."""
    number -= number % (2 * BATCH)
    mb = number * SIZE / 1e6
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(broker(instance=f"bench-{one}")) for one in range(brokers)]
        words = (str(number), *(addresses["tcp"] for addresses, _ in started))
        before = sum(spent(pid) for _, pid in started)
        reading = stack.enter_context(latency.started("bench.several", "--role", "subscribe", *words))
        answer(reading)
        writing = stack.enter_context(latency.started("bench.several", "--role", "publish", *words))
        written, received = answer(writing), answer(reading)
        return {
            "records/s": number / (received["last"] - written["started"]),
            "brokers' CPU, ms a MB": (sum(spent(pid) for _, pid in started) - before) * 1_000 / mb,
            "publisher's CPU, ms a MB": written["cpu"] * 1_000 / mb,
            "subscriber's CPU, ms a MB": received["cpu"] * 1_000 / mb,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.several",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        name, number, *addresses = options.role
        uvloop.run({"publish": publish, "subscribe": subscribe}[name](int(number), addresses))
        return
    runs = []
    for _ in range(options.runs):
        runs.append((one_run(options.records, 1), one_run(options.records, 2)))
        console.print(runs[-1])
    table = Table(title="Two brokers with the topics cut between them, beside one")
    for heading in ("", "one", "two", "least", "most"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in runs[0][0]:
        sides = [[run[side][name] for run in runs] for side in (0, 1)]
        both = [f"{statistics.median(values):,.1f}" for values in sides]
        table.add_row(name, *both, f"{min(sides[1]):,.1f}", f"{max(sides[1]):,.1f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
