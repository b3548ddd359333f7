"""Replays: rate, number of segments, number of subscribers, and effect on live delivery.

    python -m bench --only replays [--runs 3] [--records 10000000]

Rates are compared with one Python process that reads the same bytes from the page cache and writes them to
a loopback socket, in the same run. The receiver is equal in both: it walks frame headers and drops the
rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.processes import answer, broker, resident, role

MIB = 1024 * 1024
BATCH = 512
SMALL_BATCH = 100
"""Second batch size for memory: a batch of 512 is larger than the memory that a waiting replay may cost."""
SUBSCRIBERS = 1_000
REPLAYS = 8
SEEKS = 2_000


def finish(process: Any) -> dict[str, Any]:
    """Return a role's second answer after it has ended."""
    found = answer(process)
    process.wait()
    return found


@contextlib.contextmanager
def filled_broker(records: int, batch: int = BATCH, journal_size: int = 0) -> Iterator[tuple[str, int, Path]]:
    """Run a broker whose journal has `records` 100-byte records; yield its address, process id and home."""
    # The compressed replay needs some full segments, also in a small run.
    size = journal_size or min(max(records * 120 // 8, MIB), 128 * MIB)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as home,
        broker(home=home, journal_size=size) as (addresses, pid),
    ):
        writing = role(
            "sluice-publish", addresses["tcp"], records, batch, *(["apart"] if batch < BATCH else [])
        )
        answer(writing)
        writing.wait()
        yield addresses["tcp"], pid, Path(home)


def ask(home: Path, do: str, **fields: Any) -> Any:
    """Send a request to the broker's control socket."""
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(home / "run" / "bench-1.sock"))
        control.sendall(json.dumps({"do": do, **fields}).encode() + b"\n")
        reply = json.loads(control.makefile().readline())
    if not reply["ok"]:
        raise SystemExit(f"{do}: {reply}")
    return reply["result"]


def drained(address: str, records: int, name: str, bookmark: str = "0") -> float:
    """Return records a second of one replay to a receiver that drops them."""
    reading = role("replay-drain", address, records, name, bookmark)
    answer(reading)
    found = finish(reading)
    return float(found["records"] / (found["last"] - found["asked"]))


def compress_all(home: Path) -> None:
    """Compress every sealed segment, as worker and broker do together."""
    from broker_core.journal.segment_copies import compress_segment

    ask(home, "journals")
    for segment in ask(home, "journals"):
        if segment["state"] == "sealed" and not segment["compressed"]:
            prepared = home / "journal" / "prepared.gz"
            compress_segment(Path(segment["path"]), prepared)
            ask(home, "journal_swap", action="compress", name=segment["name"], prepared=str(prepared))


def rates(records: int) -> dict[str, float]:
    """Return records a second of replays and of a plain socket.

    The replays are from EPOCH, of raw and of compressed segments, and with the client library.
    """
    records -= records % BATCH
    with filled_broker(records) as (address, _, home):
        found = {"replay": drained(address, records, "drain")}
        files = [str(path) for path in sorted((home / "journal").glob("*.journal"))]
        reading = role("replay-plain-receive", *files)
        port = answer(reading)["port"]
        role("replay-plain-send", port, *files).wait()
        plain = finish(reading)
        found["plain"] = records / (plain["last"] - plain["first"])
        reading = role("sluice-subscribe", address, records, "library", "0")
        answer(reading)
        library = finish(reading)
        found["library"] = records / (library["last"] - library["asked"])
        compress_all(home)
        compressed = [segment for segment in ask(home, "journals") if segment["compressed"]]
        if compressed:
            end = f"bench-1|{compressed[-1]['last_sequence']}|"
            number = sum(segment["records"] for segment in compressed)
            found["compressed"] = drained(address, number * 99 // 100, "gz", f"[0:{end}]")
        return found


def seek_p99(segments: int) -> float:
    """Return the p99 in ms from a request to the first chunk, at random bookmarks in a log of many
    segments."""
    from broker_core.batch import Batch, build_single_topic_batch
    from broker_core.delivery.scheduling import FIRST_CHUNK_BYTES
    from broker_core.journal.appender import JournalOptions
    from broker_core.journal.journal import Journal

    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as home:
        journal = Journal.open(
            Path(home), "seek-1", None, JournalOptions(segment_size=256 * 1024, preallocated=1)
        )
        while len(journal.segments()) <= segments:
            batch = Batch.parse(build_single_topic_batch("p", "bench", [b"x" * 100] * BATCH), verify=False)
            batch.stamp(
                origin=journal.origin,
                epoch=journal.epoch,
                first_sequence=journal.next_sequence,
                accepted_at=1,
            )
            journal.write([batch])
        journal.close()
        journal = Journal.open(Path(home), "seek-1")
        newest, pick, durations_ms = journal.next_sequence - 1, random.Random(1), []
        for _ in range(SEEKS):
            sequence = pick.randint(1, newest)
            started = time.perf_counter()
            journal.read_with_positions(sequence, FIRST_CHUNK_BYTES, newest)
            durations_ms.append((time.perf_counter() - started) * 1_000)
        journal.close()
        return statistics.quantiles(durations_ms, n=100)[98]


def memory(records: int, batch: int) -> dict[str, float]:
    """Return KiB of the broker's memory for each of 1,000 replays from different positions.

    Measured are reading clients, up to their end, and stopped clients, until the broker hasn't grown for 5
    s. The peak counts.
    """
    found = {}
    for how in ("reading", "stopped"):
        # A fresh broker for each: memory freed by an earlier measurement would hide the growth.
        with filled_broker(records, batch) as (address, pid, home):
            newest = ask(home, "status")["durable_sequence"]
            before = peak = resident(pid)
            many = role("replay-many", address, SUBSCRIBERS, newest, how)
            ready, grown_at = False, time.monotonic()
            while not ready or (how == "stopped" and time.monotonic() - grown_at < 5):
                now = resident(pid)
                if now > peak:
                    peak, grown_at = now, time.monotonic()
                ready = ready or many.poll() is not None or _line_of(many) is not None
                time.sleep(0.02)
            found[how] = (peak - before) / SUBSCRIBERS / 1024
            many.kill()
            many.wait()
    return found


def _line_of(process: Any) -> dict[str, Any] | None:
    import select

    if select.select([process.stdout], [], [], 0)[0]:
        return answer(process)
    return None


def live_p99(
    records: int, replays: int, windows: int, seconds: float = 4.0
) -> tuple[list[float], list[float], float]:
    """Return the 99th percentile of live delivery, in µs, without and with endless replays beside it.

    Also returns the records a second of the replays. The windows alternate in one broker. The journal is on
    disk before the first window; otherwise live syncs would wait for it longer than for any replay.
    """
    calm, busy, rates = list[float](), list[float](), list[float]()
    with filled_broker(records, journal_size=128 * MIB) as (address, _, home):
        os.sync()
        served = Served(address, home)
        live_window(served, 0, seconds)  # warm-up
        for _ in range(windows):
            calm.append(live_window(served, 0, seconds)[0])
            p99, rate = live_window(served, replays, seconds)
            busy.append(p99)
            rates.append(rate)
    return calm, busy, statistics.median(rates)


class Served(NamedTuple):
    """A broker of the benchmark."""

    address: str
    home: Path


def live_window(
    broker: Served,
    replays: int,
    seconds: float,
    rate: int = 20_000,
) -> tuple[float, float]:
    """Return the 99th percentile of live messages beside replays, in µs, and the replays' records a second.

    Reading processes have the lowest priority: normally they run on another machine, so their own work must
    not slow the broker.
    """
    readers = [
        role("replay-drain", broker.address, 1 << 60, f"replay-{number}", "0", "again")
        for number in range(replays)
    ]
    for reader in readers:
        os.setpriority(os.PRIO_PROCESS, reader.pid, 19)
        answer(reader)
    live = role("latency-subscribe", broker.address, "live")
    answer(live)
    before, began = ask(broker.home, "status")["totals"]["messages_out"], time.monotonic()
    writing = role("paced-publish", broker.address, seconds, rate, 64)
    found = finish(live)
    replayed = ask(broker.home, "status")["totals"]["messages_out"] - before
    replayed -= found["received"]
    elapsed = time.monotonic() - began
    for process in (writing, *readers):
        process.kill()
        process.wait()
    return float(found["p99_us"]), replayed / elapsed


def spread(values: list[float]) -> str:
    """Format the median, the minimum and the maximum."""
    return f"{statistics.median(values):,.0f} µs ({min(values):,.0f} to {max(values):,.0f})"


def replays_table(runs: int, records: int) -> None:
    """Run everything and print it."""
    table = Table(title=f"Replays of {records:,} records of 100 bytes, {os.cpu_count()} cores, {runs} runs")
    for heading in ("", "median", "aim"):
        table.add_column(heading, justify="left" if not heading else "right")
    found = [rates(records) for _ in range(runs)]
    middle = {key: statistics.median(run[key] for run in found) for key in found[0]}
    for key, name in (
        ("plain", "page cache to socket, plain"),
        ("replay", "replay from EPOCH"),
        ("compressed", "from .journal.gz"),
        ("library", "to the client library"),
    ):
        if key in middle:
            table.add_row(name, f"{middle[key]:,.0f}/s", "")
    share = statistics.median(run["replay"] / run["plain"] for run in found)
    table.add_row("replay of plain", f"{share:.2f} x", ">= 0.5 x")
    if "compressed" in middle:
        share = statistics.median(run["compressed"] / run["replay"] for run in found)
        table.add_row("compressed of raw", f"{share:.2f} x", ">= 0.5 x")
    for segments in (100, 1_000):
        p99 = statistics.median(seek_p99(segments) for _ in range(runs))
        table.add_row(f"seek p99, {segments:,} segments", f"{p99:.2f} ms", "< 5 ms")
    for batch in (SMALL_BATCH, BATCH):
        for name, value in memory(min(records, 100_000), batch).items():
            table.add_row(
                f"each of {SUBSCRIBERS:,} subscribers, {name}, batches of {batch}",
                f"{value:.0f} KiB",
                "< 64 KiB",
            )
    calm, busy, rate = live_p99(min(records, 1_000_000), REPLAYS, 2 * runs + 1)
    ratio = statistics.median(busy) / statistics.median(calm)
    table.add_row("live p99, no replays", spread(calm), "")
    table.add_row(
        f"live p99, {REPLAYS} replays of {rate:,.0f}/s together", f"{spread(busy)}, {ratio:.2f} x", "<= 1.2 x"
    )
    Console().print(table)
