"""A client that returns from its spool: rate of its backlog, against a replay of the same records from EPOCH.

    python -m bench.returning [--runs 3] [--records 1000000] [--parts rates,news,others]

A subscriber stops reading while records are published, is offlined, and reads again. Then the same
subscriber replays them from the same broker's journal. Both get the same records in the same batches, one
after the other; the order changes with each run. The rate of the returning client counts only records that
waited in the broker, and the time from its first read until it has everything. So data in kernel and client
buffers reduces its rate.

    rates    of the client library, and of a bare socket that drops all; by reference and by copy
    news     the same while new records arrive: time until the client is live
    others   live p99 of another client while clients return, and while as many replay the same
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.processes import Process, answer, broker, go, role
from bench.replays import ask

MEMORY = 32 * 2**20
"""Size of the pool. A client may have half of it in memory before it is offlined."""
KINDS = ("library", "socket")
SIZES = {100: 1, 1_000: 4}
"""Bytes of a record, and the factor by which a run has fewer of them."""
BATCH = 512
NEWS_RATE = 20_000
RETURNING = 4
PARTS = ("rates", "news", "others")
console = Console(stderr=True)


@contextlib.contextmanager
def small_broker() -> Iterator[tuple[str, Path]]:
    """Run a fresh broker with little memory; yield its address and home."""
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as home,
        broker(MEMORY, home=home) as (addresses, _),
    ):
        yield addresses["tcp"], Path(home)


def publish(address: str, topic: str, number: int, size: int, batch: int) -> None:
    writing = role("returning-publish", address, topic, number, size, batch)
    answer(writing)
    writing.wait()


def get_client(home: Path, name: str) -> dict[str, Any]:
    """Return the broker's data about a client."""
    found: dict[str, Any] = ask(home, "client", name=name)
    return found


def processor_s(home: Path) -> float:
    """Return the processor seconds of the broker."""
    fields = Path(f"/proc/{ask(home, 'status')['pid']}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def subscriber(
    address: str, kind: str, name: str, topic: str, number: int, bookmark: str = ""
) -> Iterator[Process]:
    """Run a subscriber that doesn't read until `go`."""
    with running(
        role(f"returning-{kind}", address, name, topic, number, *([bookmark] if bookmark else []))
    ) as reading:
        answer(reading)
        yield reading


@contextlib.contextmanager
def running(process: Process) -> Iterator[Process]:
    """Yield a process; kill it in the end."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def state_of(home: Path, name: str) -> str:
    """Return a client's state; "" without such a client."""
    found = ask(home, "clients")
    return next((str(client["state"]) for client in found if client["name"] == name), "")


def until(home: Path, name: str, state: str, seconds: float = 100.0) -> float:
    """Wait until a client has this state; return the time."""
    ends = time.monotonic() + seconds
    while (found := state_of(home, name)) != state:
        if time.monotonic() > ends:
            raise SystemExit(f"{name} is {found} and doesn't become {state}")
        time.sleep(0.001)
    return time.monotonic()


def returning(home: Path, reading: Process, name: str) -> dict[str, float]:
    """Let an offlined subscriber read, and measure its return.

    Returns the rate of the backlog, its share of all records, the ms until the client is live, and the
    cost.
    """
    until(home, name, "offlined")
    before, spent = get_client(home, name), processor_s(home)
    go(reading)
    found = answer(reading)
    live = until(home, name, "live")
    waited, seconds = before["lag_messages"], found["last"] - found["asked"]
    return {
        "returning": waited / seconds,
        "waited": waited / found["received"],
        "live_ms": (live - found["last"]) * 1_000,
        "spool_bytes": before["spool_bytes"],
        "returning_cpu": (processor_s(home) - spent) / waited * 1e6,
    }


def replaying(address: str, home: Path, kind: str, topic: str, number: int) -> dict[str, float]:
    """Return records a second of a replay from EPOCH."""
    with subscriber(address, kind, "replaying", topic, number, "0") as reading:
        spent = processor_s(home)
        go(reading)
        found = answer(reading)
        rate = found["received"] / (found["last"] - found["asked"])
        return {"replay": rate, "replay_cpu": (processor_s(home) - spent) / number * 1e6}


def rates(kind: str, number: int, size: int, batch: int, first: bool) -> dict[str, float]:
    """Run the returning client and the replay on one broker, spooled by reference.

    `_cpu` figures are µs a record.
    """
    with (
        small_broker() as (address, home),
        subscriber(address, kind, "returning", "bench", number) as reading,
    ):
        publish(address, "bench", number, size, batch)
        parts: list[Callable[[], dict[str, float]]] = [
            lambda: returning(home, reading, "returning"),
            lambda: replaying(address, home, kind, "bench", number),
        ]
        found: dict[str, float] = {}
        for part in parts if first else reversed(parts):
            found |= part()
        return found


def copied(kind: str, number: int, size: int, batch: int) -> dict[str, float]:
    """Measure the returning client on an unjournaled topic, which is spooled by copy."""
    topic = "scratch.bench"
    with small_broker() as (address, home), subscriber(address, kind, "returning", topic, number) as reading:
        publish(address, topic, number, size, batch)
        return returning(home, reading, "returning")


def rates_table(runs: int, records: int, batch: int) -> Table:
    """Measure all record sizes and client kinds; return the table."""
    made = Table(title=f"Returning from the spool, {runs} runs, medians, batches of {batch}")
    for heading in (
        "",
        "replay/s",
        "returning/s",
        "of the replay (least to most)",
        "by copy/s",
        "of the replay",
        "broker's CPU",
        "live after",
    ):
        made.add_column(heading, justify="left" if not heading else "right")
    for kind in KINDS:
        for size, fewer in SIZES.items():
            number = records // fewer // batch * batch
            by_reference, by_copy = [], []
            for run in range(runs):
                by_reference.append(rates(kind, number, size, batch, run % 2 == 0))
                by_copy.append(copied(kind, number, size, batch))
                console.print(
                    f"run {run + 1}: {kind}, {size} bytes: {by_reference[-1]}, by copy {by_copy[-1]}"
                )
            shares = sorted(one["returning"] / one["replay"] for one in by_reference)
            copies = [
                two["returning"] / one["replay"] for one, two in zip(by_reference, by_copy, strict=True)
            ]
            made.add_row(
                f"{kind}, {number:,} of {size:,} bytes",
                f"{middle(by_reference, 'replay'):,.0f}",
                f"{middle(by_reference, 'returning'):,.0f}",
                f"{statistics.median(shares):.0%} ({shares[0]:.0%} to {shares[-1]:.0%})",
                f"{middle(by_copy, 'returning'):,.0f}",
                f"{statistics.median(copies):.0%}",
                f"{middle(by_reference, 'returning_cpu'):.2f} and "
                f"{middle(by_reference, 'replay_cpu'):.2f} µs",
                f"{middle(by_reference, 'live_ms'):.1f} ms",
            )
    return made


def middle(runs: list[dict[str, float]], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def news(number: int) -> dict[str, float]:
    """Measure a backlog while the topic continues at NEWS_RATE.

    Returns the seconds until the client is live, and until a replay's client is.
    """
    # Both expect more records than will ever arrive.
    with (
        small_broker() as (address, home),
        subscriber(address, "socket", "returning", "bench", 1 << 60) as reading,
    ):
        publish(address, "bench", number, 100, BATCH)
        with running(role("paced-publish", address, 240, NEWS_RATE, 64)):
            time.sleep(1.0)
            found: dict[str, float] = {"waited": get_client(home, "returning")["lag_messages"]}
            found["returning"] = until_live(home, reading, "returning")
        with (
            running(role("paced-publish", address, 240, NEWS_RATE, 64)),
            subscriber(address, "socket", "replay", "bench", 1 << 60, "0") as replay,
        ):
            time.sleep(1.0)
            return found | {"replay": until_live(home, replay, "replay")}


def until_live(home: Path, reading: Process, name: str) -> float:
    """Return the seconds from its first read until it is live."""
    began = time.monotonic()
    go(reading)
    return until(home, name, "live") - began


def others(what: str, number: int, seconds: float = 5.0) -> float:
    """Return the p99 of another client's live delivery, in µs, while clients return, replay or do nothing."""
    with small_broker() as (address, _), contextlib.ExitStack() as stack:

        def readers(bookmark: str) -> list[Process]:
            names = [f"{what}-{number}" for number in range(RETURNING)]
            return [
                stack.enter_context(subscriber(address, "socket", name, "many", 1 << 60, bookmark))
                for name in names
            ]

        reading = readers("") if what == "return" else []
        publish(address, "many", number, 100, BATCH)
        if what == "replay":
            reading = readers("0")
        live = stack.enter_context(running(role("latency-subscribe", address, "live")))
        answer(live)
        stack.enter_context(running(role("paced-publish", address, seconds, NEWS_RATE, 64)))
        time.sleep(0.3)
        for process in reading:
            go(process)
        return float(answer(live)["p99_us"])


def returning_tables(runs: int, records: int, batch: int = BATCH, parts: Sequence[str] = PARTS) -> None:
    """Run the parts and print them."""
    if "rates" in parts:
        Console(width=150).print(rates_table(runs, records, batch))
    if "news" in parts:
        found = [news(records) for _ in range(runs)]
        Console().print(
            f"{middle(found, 'waited'):,.0f} waiting records while {NEWS_RATE:,}/s keep coming: live after "
            f"{middle(found, 'returning'):.1f} s; a replay of the same {middle(found, 'replay'):.1f} s"
        )
    if "others" in parts:
        p99: dict[str, list[float]] = {what: [] for what in ("nothing", "return", "replay")}
        for _ in range(runs):
            for what, values in p99.items():
                values.append(others(what, records))
        calm, back, replay = (statistics.median(values) for values in p99.values())
        Console().print(
            f"live p99 of another at {NEWS_RATE:,}/s: {calm:,.0f} µs; while {RETURNING} return "
            f"{back:,.0f} µs, "
            f"{back / calm:.2f} x; while as many replay {replay:,.0f} µs, {replay / calm:.2f} x"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.returning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--records",
        type=int,
        default=1_000_000,
        help="of 100 bytes; a quarter of 1,000 bytes (default 1,000,000)",
    )
    parser.add_argument(
        "--batch", type=int, default=BATCH, help="messages a call of the publisher (default 512)"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="which of them (default all)")
    options = parser.parse_args()
    returning_tables(options.runs, options.records, options.batch, options.parts.split(","))


if __name__ == "__main__":
    main()
