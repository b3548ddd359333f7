"""Builders for the journal's tests: stamped batches, small journals, and files that fail or record calls."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from broker_core.batch import Batch, Buffer, build_batch, build_single_topic_batch
from broker_core.journal.files import FileSystem
from broker_core.journal.frontier_file import KnownLog
from broker_core.journal.journal import Journal, JournalOptions
from broker_core.journal.tools import inspect

INSTANCE = "sluice-t"
SMALL = JournalOptions(segment_size=64 * 1024, preallocated=1)


def open_journal(
    directory: Path,
    options: JournalOptions = SMALL,
    files: FileSystem | None = None,
    known: KnownLog | None = None,
) -> Journal:
    """A journal below `directory`, with an archive beside it."""
    return Journal.open(
        directory / "journal", INSTANCE, directory / "archive", options, files=files, known=known
    )


def accept(directory: Path, known: KnownLog | None = None) -> None:
    """Accept the log as the instance's, as an operator does."""
    inspect.repair_journal(directory / "journal", INSTANCE, directory / "archive", known, accept=True)


def batch_for(
    journal: Journal,
    first: int,
    count: int = 3,
    *,
    at: int = 0,
    size: int = 100,
    publisher: str = "p",
    topic: str = "t.a",
) -> Batch:
    """Return a stamped batch whose bodies name their sequences."""
    bodies = [f"{first + row}:".encode().ljust(size, b".") for row in range(count)]
    batch = Batch.parse(build_single_topic_batch(publisher, topic, bodies, first))
    batch.stamp(
        origin=journal.origin, epoch=journal.epoch, first_sequence=first, accepted_at=at or first * 1_000
    )
    return batch


def topics_batch(journal: Journal, topics: Sequence[str]) -> Batch:
    """The journal's next batch, with a record for each topic."""
    batch = Batch.parse(build_batch("p", topics, [b"{}"] * len(topics)))
    first = journal.next_sequence
    batch.stamp(origin=journal.origin, epoch=journal.epoch, first_sequence=first, accepted_at=first)
    return batch


def fill(
    journal: Journal, batches: int, count: int = 3, size: int = 100, publisher: str = "p"
) -> list[Batch]:
    """Write and sync batches, one write each; returns them."""
    made = []
    for _ in range(batches):
        batch = batch_for(journal, journal.next_sequence, count, size=size, publisher=publisher)
        journal.write([batch])
        made.append(batch)
    journal.sync()
    return made


def read_all(journal: Journal, start: int | None = None, max_bytes: int = 10_000) -> list[int]:
    """Every sequence that can be read, by consecutive reads."""
    sequence = journal.first_sequence if start is None else start
    found: list[int] = []
    while batches := journal.read(sequence, max_bytes, journal.durable_sequence):
        for batch in batches:
            for record in batch.records():
                assert record.body.startswith(f"{record.sequence}:".encode())
                found.append(record.sequence)
        sequence = found[-1] + 1
    return found


def flip(path: Path, offset: int) -> None:
    """Invert one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        old = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([old ^ 0xFF]))


class FailingFiles(FileSystem):
    """A file system that raises OSError from chosen calls and records all calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fail: Callable[[str], bool] = lambda name: False
        self.errno = errno.ENOSPC
        self.short_by = 0

    def _note(self, name: str, what: object = "") -> None:
        self.calls.append((name, str(what)))
        if self.fail(name):
            raise OSError(self.errno, os.strerror(self.errno))

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.short_by:
            # As a disk that fills up does: first a short write, then the error.
            cut, self.short_by = self.short_by, 0
            whole = b"".join(buffers)
            self.fail = lambda name: name == "pwritev"
            return os.pwrite(fd, whole[: len(whole) - cut], offset)
        self._note("pwritev")
        return super().pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        self._note("fdatasync", Path(f"/proc/self/fd/{fd}").readlink().name)
        super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self._note("fsync", Path(f"/proc/self/fd/{fd}").readlink().name)
        super().fsync(fd)

    def truncate(self, fd: int, length: int) -> None:
        self._note("truncate")
        super().truncate(fd, length)

    def reserve(self, fd: int, length: int) -> None:
        self._note("reserve")
        super().reserve(fd, length)

    def rename(self, source: Path, target: Path) -> None:
        self._note("rename", target.name)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._note("unlink", path.name)
        super().unlink(path)

    def sync_directory(self, directory: Path) -> None:
        self._note("sync_directory", directory.name)
        super().sync_directory(directory)
