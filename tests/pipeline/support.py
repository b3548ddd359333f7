"""Real journals for the pipeline's tests, written by the broker's Journal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from broker_core.batch import Batch, build_batch
from broker_core.checksum import crc32c
from broker_core.journal import index_sidecar
from broker_core.journal.appender import JournalOptions
from broker_core.journal.journal import Journal
from broker_core.journal.segment import HEADER_SIZE, index_path, parse_segment_path
from broker_core.journal.segment_copies import compress_segment, copy_segment
from broker_core.journal.segment_reader import open_source, scan_segment
from pipeline.config import JobSettings, settings_from
from pipeline.plots import PlotSpec, draw_svg
from sluice_spark.location import LogLocation

INSTANCE = "sluice-1"
NOON = 1_795_262_400_000_000_000
"""2026-11-21T12:00:00Z in nanoseconds."""
SECOND = 1_000_000_000
SMALL = JournalOptions(segment_size=16 * 1024, preallocated=0)

Message = tuple[str, bytes]


def journal_location(home: Path) -> LogLocation:
    """Return where `open_journal` puts the journal."""
    return settings_in(home).log


def settings_in(home: Path) -> JobSettings:
    """Return settings of a job that works in `home` on two cores."""
    home.mkdir(parents=True, exist_ok=True)
    return settings_from({}, home=home, instance=INSTANCE, archive=home / "archive", master="local[2]")


@contextmanager
def open_journal(home: Path, options: JournalOptions = SMALL) -> Iterator[Journal]:
    """Open the instance's journal for writing."""
    place = journal_location(home)
    journal = Journal.open(place.directory, place.instance, place.archive, options)
    try:
        yield journal
    finally:
        journal.close()


def append(
    journal: Journal,
    messages: Sequence[Message],
    *,
    at: int = NOON,
    publisher: str = "writer",
    headers: Sequence[bytes] | None = None,
    number: int = 0,
    sync: bool = True,
) -> Batch:
    """Write one record batch."""
    topics, bodies = [topic for topic, _ in messages], [body for _, body in messages]
    batch = Batch.parse(build_batch(publisher, topics, bodies, headers, number))
    batch.stamp(
        origin=journal.origin, epoch=journal.epoch, first_sequence=journal.next_sequence, accepted_at=at
    )
    journal.write([batch])
    if sync:
        journal.sync()
    return batch


def numbered_messages(count: int, first: int = 1, topics: int = 3) -> list[Message]:
    """Return messages on topics t.0, t.1, ... whose bodies have their number."""
    return [(f"t.{n % topics}", json.dumps({"n": n}).encode()) for n in range(first, first + count)]


def fill(home: Path, sizes: Iterable[int], *, step: int = SECOND) -> int:
    """Write a journal of batches of these sizes, one per `step`; return its last sequence."""
    with open_journal(home) as journal:
        for number, size in enumerate(sizes):
            append(journal, numbered_messages(size, journal.next_sequence), at=NOON + number * step)
            journal.finish_sealed()
        return journal.next_sequence - 1


def move(home: Path, action: str, which: slice = slice(None, -1)) -> int:
    """Archive or compress sealed segments as the broker does; returns how many."""
    with open_journal(home) as journal:
        return act_on_open(journal, home, action, which)


def act_on_open(journal: Journal, home: Path, action: str, which: slice = slice(None, None)) -> int:
    """Archive or compress segments of an open journal; return how many.

    Segments already archived or compressed are skipped.
    """
    sealed = [info for info in journal.segments() if info.state != "current"][which]
    done = "archived" if action == "archive" else ""
    chosen = [
        info for info in sealed if info.state != done and not (action == "compress" and info.compressed)
    ]
    for info in chosen:
        target = journal_target(home, info.path, action)
        if action == "archive":
            copy_segment(info.path, target)
            journal.archive_swap(info.name, target)
        else:
            compress_segment(info.path, target)
            journal.compress_swap(info.name, target)
    return len(chosen)


def identify(home: Path, identity: UUID, only: Path | None = None) -> str:
    """Write an identity into the headers of the segments that aren't compressed, as a broker does."""
    for path in [only] if only is not None else journal_location(home).directory.glob("*.journal"):
        with path.open("r+b") as file:
            header = bytearray(file.read(HEADER_SIZE))
            header[114:130] = identity.bytes
            header[12:16] = bytes(4)
            header[12:16] = crc32c(header).to_bytes(4, "little")
            file.seek(0)
            file.write(header)
    return str(identity)


def write_sidecar(path: Path) -> None:
    """Write the sidecar of an unsealed segment, as if it were sealed."""
    instance, first = parse_segment_path(path)
    index_path(path).write_bytes(
        index_sidecar.encode_sidecar(scan_segment(open_source(path), instance, first).index)
    )


def journal_target(home: Path, source: Path, action: str) -> Path:
    """Return where the prepared file of a swap is made: in a folder of its own, as the console does.

    Beside the segments it would briefly be the segment of an instance called `prepared-...`.
    """
    directory = home / "archive" if action == "archive" else source.parent
    shelf = directory / f"{INSTANCE}.prepared"
    shelf.mkdir(parents=True, exist_ok=True)
    return shelf / f"{source.name}{'.gz' if action == 'compress' else ''}"


def numbers_of(tables: Iterable[pa.RecordBatch]) -> list[int]:
    """Return all sequences, in the order read."""
    parts = [batch.column("sequence").to_numpy() for batch in tables]
    return np.concatenate(parts).tolist() if parts else []


class FakeReporter:
    """A reporter that records its calls."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[tuple[int, int, str]] = []
        self.tables: dict[str, list[dict[str, Any]]] = {}

    def progress(self, done: int, total: int, unit: str) -> None:
        self.steps.append((done, total, unit))

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    def page(self, html: str) -> None:
        self.html = html

    def table(self, name: str, table: pa.Table, title: str, plots: Sequence[PlotSpec] = ()) -> None:
        self.tables[name] = table.to_pylist()
        for plot in plots:
            assert draw_svg(plot, table).startswith("<svg")


def event(client: str, at_ms: int, kind: str, **fields: Any) -> bytes:
    """Return an event as the broker publishes it on $SLUICE.clients."""
    state = "offlined" if kind == "offline_start" else "live"
    told = {
        "at": at_ms,
        "client": client,
        "event": kind,
        "state": state,
        "lag_messages": 0,
        "lag_bytes": 0,
        "lag_ms": 0,
    }
    return json.dumps(told | fields).encode()
