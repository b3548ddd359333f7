"""Reading spool entries: one read for neighbours, whole batches unchanged, and nothing damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.delivery.spool.entry_format import SpoolEntry
from broker_core.delivery.spool.reader import load_deliveries, to_spool_entries
from broker_core.errors import JournalError
from broker_core.journal.journal import Journal, JournalOptions
from broker_core.journal.segment import BatchPosition

COUNT = 4


class CountingJournal:
    """A journal that counts its reads."""

    def __init__(self, directory: Path) -> None:
        self.journal = Journal.open(
            directory, "i-1", None, JournalOptions(segment_size=64 * 1024, preallocated=1)
        )
        self.reads: list[int] = []

    def write(self, size: int = 100) -> tuple[BatchPosition, Batch]:
        """A batch of COUNT records, accepted at its first sequence."""
        journal, first = self.journal, self.journal.next_sequence
        batch = Batch.parse(
            build_single_topic_batch("p", "t", [b"%08d" % (first + n) + b"x" * size for n in range(COUNT)])
        )
        batch.stamp(origin=journal.origin, epoch=journal.epoch, first_sequence=first, accepted_at=first)
        return journal.write([batch])[0], batch

    def read_span(self, position: BatchPosition, length: int) -> list[tuple[int, Batch]]:
        self.reads.append(length)
        return self.journal.read_span(position, length)

    def read_at(self, position: BatchPosition, length: int) -> Batch:
        return self.journal.read_at(position, length)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CountingJournal]:
    made = CountingJournal(tmp_path)
    yield made
    made.journal.close()


def entry(
    written: list[tuple[BatchPosition, Batch]], *, stream: int = 1, at: int = 0, rows: Any = None
) -> SpoolEntry:
    """A reference to batches that stand behind one another."""
    position, first = written[0]
    length = sum(batch.nbytes for _, batch in written)
    count = len(rows) if rows is not None else COUNT * len(written)
    return SpoolEntry(
        stream, "reference", position, length, rows, None, count, length, at or first.accepted_at
    )


def read_entries(log: CountingJournal, *entries: SpoolEntry) -> list[Any]:
    journal: Any = log
    return load_deliveries(journal, entries)


def test_a_run_comes_back_as_the_batches_it_was_made_of(log: CountingJournal) -> None:
    written = [log.write() for _ in range(3)]
    found = read_entries(log, entry(written))
    assert [one.source for one in found] == [position for position, _ in written]
    assert [bytes(one.batch.buf) for one in found] == [bytes(batch.buf) for _, batch in written]
    assert [(one.count, one.nbytes, one.rows) for one in found] == [
        (COUNT, b.nbytes, None) for _, b in written
    ]


def test_each_batch_of_a_run_is_as_old_as_it_is(log: CountingJournal) -> None:
    written = [log.write() for _ in range(3)]
    assert [one.accepted_at for one in read_entries(log, entry(written))] == [1, 5, 9]
    # A replay had queued them later than they were accepted: none is older than that.
    assert [one.accepted_at for one in read_entries(log, entry(written, at=7))] == [7, 7, 9]


def test_neighbouring_entries_are_one_read(log: CountingJournal) -> None:
    written = [log.write() for _ in range(6)]
    found = read_entries(
        log, entry(written[:2]), entry(written[2:3], rows=np.array([1, 3])), entry(written[3:])
    )
    assert len(log.reads) == 1
    assert [one.count for one in found] == [COUNT, COUNT, 2, COUNT, COUNT, COUNT]
    assert [body[:8] for body in found[2].batch.bodies()] == [b"00000010", b"00000012"]


def test_one_batch_for_several_subscriptions_is_read_and_held_once(log: CountingJournal) -> None:
    written = [log.write() for _ in range(2)]
    found = read_entries(log, *(entry([one], stream=stream) for one in written for stream in (1, 2)))
    assert len(log.reads) == 1
    assert [one.stream for one in found] == [1, 2, 1, 2]
    assert found[0].batch is found[1].batch and found[2].batch is found[3].batch


def test_what_stands_between_two_entries_isnt_read(log: CountingJournal) -> None:
    written = [log.write() for _ in range(5)]
    found = read_entries(log, entry(written[:1]), entry(written[4:]))
    assert log.reads == [written[0][1].nbytes, written[4][1].nbytes]
    assert [one.batch.first_sequence for one in found] == [1, 17]


def test_entries_of_two_segments_are_two_reads(log: CountingJournal) -> None:
    written = [log.write(4_000) for _ in range(5)]
    assert len({position.segment for position, _ in written}) == 2
    assert [one.batch.first_sequence for one in read_entries(log, *(entry([one]) for one in written))] == [
        *range(1, 21, COUNT)
    ]
    assert len(log.reads) == 2


def test_a_copy_between_references_keeps_its_place(log: CountingJournal) -> None:
    written = [log.write() for _ in range(2)]
    batch = Batch.parse(build_single_topic_batch("p", "t", [b"copy"]))
    copied = SpoolEntry(1, "copy", BatchPosition(0, 0), batch.nbytes, None, batch, 1, batch.nbytes, 3)
    found = read_entries(log, entry(written[:1]), copied, entry(written[1:]))
    assert [one.source is None for one in found] == [False, True, False]
    assert found[1].batch is batch and len(log.reads) == 1


@pytest.mark.parametrize("whole", [True, False], ids=["in one run", "in entries of their own"])
def test_damage_is_an_error_and_nothing_is_skipped(log: CountingJournal, whole: bool) -> None:
    written = [log.write() for _ in range(3)]
    with log.journal.segments()[-1].path.open("r+b") as file:
        file.seek(written[1][0].offset + 200)
        file.write(b"\xff\xff")
    entries = [entry(written)] if whole else [entry([one]) for one in written]
    with pytest.raises(JournalError, match="journal_damaged"):
        read_entries(log, *entries)


def test_deliveries_that_werent_sent_are_the_entries_they_came_from(log: CountingJournal) -> None:
    written = [log.write() for _ in range(5)]
    batch = Batch.parse(build_single_topic_batch("p", "t", [b"copy"]))
    copied = SpoolEntry(1, "copy", BatchPosition(0, 0), batch.nbytes, None, batch, 1, batch.nbytes, 3)
    rows = np.array([1, 3])
    found = read_entries(log, entry(written[:2]), entry(written[2:3], rows=rows), copied, entry(written[3:]))
    again = to_spool_entries(found)
    assert [(one.kind, one.position, one.length, one.count, one.accepted_at) for one in again] == [
        ("reference", written[0][0], 2 * written[0][1].nbytes, 2 * COUNT, 1),
        ("reference", written[2][0], written[2][1].nbytes, 2, 9),
        ("copy", BatchPosition(0, 0), batch.nbytes, 1, 3),
        ("reference", written[3][0], 2 * written[3][1].nbytes, 2 * COUNT, 13),
    ]
    assert again[1].rows is rows and again[2].batch is batch
    assert [one.batch for one in again if one.kind == "reference"] == [None] * 3, "the batches are let go of"
    assert [bytes(one.batch.buf) for one in read_entries(log, *again)] == [
        bytes(one.batch.buf) for one in found
    ]
