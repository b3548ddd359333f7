"""What subscribing costs: `python -m bench.subscribing [--subscriptions 10000]`.

The registry alone: subscriptions with filters and patterns of their own come and go while batches of 1,000 topics are
matched. And one client that subscribes durably 500 times at once, with the store on this disk. CPU time for the
registry, so that what else the machine does is left out; wall time for the store.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from broker_core import clock
from broker_core.batch import Batch, build_one_topic
from broker_core.filters import compile_filter
from broker_core.journal.held import Pins
from broker_core.protocols.commands import Subscribe
from broker_core.replay.durables import Durables
from broker_core.replay.kept_file import Earlier
from broker_core.replay.kept_positions import KeptPositions
from broker_core.subscriptions import Registry, Subscription, TopicPattern

TOPICS = 1_000
DURABLES = 500


class Instance:
    """What durable subscriptions ask of theirs."""

    instance = "bench"
    dispatched_sequence = 0

    def now_ns(self) -> int:
        return clock.now_ns()


def subscriptions(number: int, pattern: str) -> list[Subscription[None]]:
    """`{}` in the pattern is the subscription's number."""
    return [
        Subscription(None, str(n), 1, TopicPattern.parse(pattern.format(n)), compile_filter(f"/n = {n}"))
        for n in range(number)
    ]


def batches() -> list[Batch]:
    return [Batch.parse(build_one_topic("p", f"desk.{n}.orders", [b'{"n":1}'])) for n in range(TOPICS)]


def come_and_go(made: list[Subscription[None]], met: list[Batch]) -> None:
    """Each is added and each removed, a batch matched after each."""
    registry = Registry[None](None)
    for batch in met:
        registry.match(batch)
    for change in (registry.add, registry.remove):
        for number, one in enumerate(made):
            change(one)
            if met:
                registry.match(met[number % TOPICS])


async def durables(number: int) -> None:
    """One client makes so many at once."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as home:
        place = Path(home)
        kept = KeptPositions(place / "kept.json", Earlier(place / "d.json", place / "r.json"), Pins().add)
        known = Durables(Instance(), kept)
        asked = [Subscribe(id=str(n), topic="t", durable=f"d{n}") for n in range(number)]
        await asyncio.gather(*(known.claim("client", one, 1) for one in asked))
        await kept.close()


def seconds(work: Callable[[], None], clock_of: Callable[[], float] = time.process_time) -> str:
    start = clock_of()
    work()
    return f"{clock_of() - start:.3f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subscriptions", type=int, default=10_000)
    number = parser.parse_args().subscriptions
    table = Table("what", "s")
    of_one, met = subscriptions(number, "t"), batches()
    table.add_row(f"{number:,} filters on one topic come and go", seconds(partial(come_and_go, of_one, [])))
    for name, pattern in (("patterns", "desk.{}.>"), ("expressions", "~desk\\.{}\\..*")):
        made = subscriptions(number if name == "patterns" else number // 10, pattern)
        what = f"{len(made):,} {name} come and go, a batch of {TOPICS:,} topics after each"
        table.add_row(what, seconds(partial(come_and_go, made, met)))
    table.add_row(
        f"{DURABLES} durable subscribes at once (wall)",
        seconds(lambda: asyncio.run(durables(DURABLES)), time.perf_counter),
    )
    Console().print(table)


if __name__ == "__main__":
    main()
