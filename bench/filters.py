"""Cost of content filters for a record: `python -m bench.filters [--runs 5]`.

10 to 10,000 subscriptions of one topic, each with a different filter, and batches of 512 records, through
`SubscriptionRegistry.match` alone. Figures are processor time, medians of the runs. Each record passes one
of the filters that compare for equality, and one in a hundred of the others.
"""

from __future__ import annotations

import argparse
import statistics
import time

from rich.console import Console
from rich.table import Table

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.filters import compile_filter
from broker_core.subscriptions import SubscriptionRegistry, TopicPattern, TopicSubscription

NUMBERS = (10, 100, 1_000, 10_000)
RECORDS = 512
KINDS = {
    "an account": "/account = 'A-{0}'",
    "an account, and a price": "/price > 0 AND /account = 'A-{0}'",
    "one of three accounts": "/account IN ('A-{0}', 'B-{0}', 'C-{0}')",
    "a limit": "/price > 98.{0}",
}


def nanoseconds(text: str, number: int, runs: int) -> float:
    """Return the processor time of a record in ns."""
    registry = SubscriptionRegistry[None](None)
    pattern = TopicPattern.parse("orders")
    for one in range(number):
        registry.add(TopicSubscription(None, f"s{one}", one, pattern, compile_filter(text.format(one))))
    bodies = [b'{"account":"A-%d","price":%.2f}' % (row % number, row % 100) for row in range(RECORDS)]
    built = build_single_topic_batch("publisher", "orders", bodies)
    times = []
    for _ in range(runs):
        batches = [Batch.parse(bytearray(built)) for _ in range(max(1, 2_000 // number))]
        began = time.process_time_ns()
        for batch in batches:
            registry.match(batch)
        times.append((time.process_time_ns() - began) / len(batches) / RECORDS)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.filters", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    table = Table(title=f"Processor time a record, µs, batches of {RECORDS}")
    for heading in ("each subscription has", *(f"{number:,}" for number in NUMBERS)):
        table.add_column(heading, justify="right" if heading[0].isdigit() else "left")
    for name, text in KINDS.items():
        table.add_row(name, *(f"{nanoseconds(text, number, runs) / 1_000:.2f}" for number in NUMBERS))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
