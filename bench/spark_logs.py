"""Logs for the Spark benchmarks, written by the broker's own journal; equal each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from broker_core.batch import Batch, build_batch
from broker_core.journal.appender import JournalOptions
from broker_core.journal.journal import Journal
from broker_core.journal.segment_copies import compress_segment

START = 1_795_262_400_000_000_000
INSTANCE = "bench"
GROUP = 50
"""Batches that are written and synced together."""


class Published(NamedTuple):
    """Contents of one batch."""

    publisher: str
    topics: list[str]
    bodies: list[bytes]


def make_log(directory: Path, records: int, size: int, publish: Callable[[int, int], Published]) -> None:
    """Write batches of `size` records.

    `publish` receives each batch's first sequence and number of records.
    """
    options = JournalOptions(preallocated=1)
    log = Journal.open(directory, INSTANCE, None, options)
    while (first := log.next_sequence) <= records:
        group: list[Batch] = []
        while first <= records and len(group) < GROUP:
            count = min(size, records - first + 1)
            publisher, topics, bodies = publish(first, count)
            made = Batch.parse(build_batch(publisher, topics, bodies, None, first), verify=False)
            at = START + first * 100_000
            made.stamp(origin=log.origin, epoch=log.epoch, first_sequence=first, accepted_at=at)
            group.append(made)
            first += count
        log.write(group)
        log.sync()
        log.finish_sealed()
        log.preallocate()
    log.close()
    Journal.open(directory, INSTANCE, None, options).close()


def compress(source: Path, target: Path) -> None:
    """Copy a journal's directory with its sealed segments compressed."""
    target.mkdir()
    for path in source.iterdir():
        if path.suffix == ".journal" and path.with_name(f"{path.stem}.index.gz").exists():
            compress_segment(path, target / f"{path.name}.gz")
        elif path.suffix in (".journal", ".gz", ".durable"):
            (target / path.name).write_bytes(path.read_bytes())
