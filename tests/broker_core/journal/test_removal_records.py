"""Removals are recorded before files are deleted, and the records stay readable for other processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_core.errors import JournalError, OperatorError
from broker_core.journal import removal_records
from broker_core.journal.files import FileSystem
from broker_core.journal.journal import Journal
from broker_core.journal.reader_leases import ReaderLease, release_lease, write_lease
from broker_core.journal.removal_records import RemovalReceipts, RemovalRecord, read_removals, removals_path
from tests.pipeline.support import SMALL, append, numbered_messages

FILES = FileSystem()
NOW = 1_795_262_400_000_000_000


def open_journal(tmp_path: Path, files: FileSystem | None = None) -> Journal:
    return Journal.open(tmp_path, "one", None, SMALL, files=files)


def fill(journal: Journal) -> None:
    while len(journal.segments()) < 5:
        append(journal, numbered_messages(50, journal.next_sequence))
        journal.finish_sealed()


def test_each_removal_leaves_a_receipt_with_its_moment(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    fill(journal)
    names = [info.name for info in journal.segments()]
    assert read_removals(tmp_path, "one") == []
    first = journal.remove(names[:2], 77)
    second = journal.remove(names[2:3], 78)
    journal.close()
    told = read_removals(tmp_path, "one")
    assert [(one.first, one.last, one.removed_at, one.segments) for one in told] == [
        (1, first.last_sequence, 77, 2),
        (first.last_sequence + 1, second.last_sequence, 78, 1),
    ]
    assert told[0].records == first.records
    assert open_journal(tmp_path).recovery.ignored == []


class NoUnlink(FileSystem):
    """A file system that stops the machine before the first file is deleted."""

    def unlink(self, path: Path) -> None:
        if path.name.endswith(".journal"):
            raise OSError(5, "power is gone")
        super().unlink(path)


class NoSecondUnlink(FileSystem):
    """A file system that stops the machine when the second segment is deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted = 0

    def unlink(self, path: Path) -> None:
        self.deleted += path.name.endswith(".journal")
        if self.deleted > 1:
            raise OSError(5, "power is gone")
        super().unlink(path)


def test_what_goes_is_noted_before_the_first_file_goes_and_once(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, NoUnlink())
    fill(journal)
    names = [info.name for info in journal.segments()]
    with pytest.raises(JournalError):
        journal.remove(names[:1], 1)
    journal.close()
    assert [one.first for one in read_removals(tmp_path, "one")] == [1]
    again = open_journal(tmp_path)
    again.remove(names[:2], 2)
    again.close()
    assert [(one.first, one.segments, one.removed_at) for one in read_removals(tmp_path, "one")] == [
        (1, 2, 2)
    ]


def test_a_note_that_cannot_be_read_refuses_and_nothing_is_removed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    fill(journal)
    removals_path(tmp_path, "one").write_bytes(b"00000000 []")
    with pytest.raises(JournalError, match="journal_damaged"):
        journal.remove([journal.segments()[0].name])
    assert len(journal.segments()) == 5
    journal.close()


def test_the_note_is_bounded_and_still_says_all_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal_records, "MAX_REMOVALS", 3)
    receipts = RemovalReceipts(FILES, tmp_path, "one")
    for n in range(1, 7):
        receipts.append(RemovalRecord(n, n, 1, 10, 1, n, n, n))
    kept = read_removals(tmp_path, "one")
    assert [(one.first, one.last, one.records, one.segments) for one in kept] == [
        (1, 4, 4, 4),
        (5, 5, 1, 1),
        (6, 6, 1, 1),
    ]


class LeaseAtTheReceipt(FileSystem):
    """A file system beside which a reader writes its lease when the first receipt is written."""

    written = False

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        if target == removals_path(target.parent, "one") and not self.written:
            self.written = True
            lease = ReaderLease("lake", 1, NOW + 60_000_000_000)
            write_lease(FILES, target.parent, "one", "lake.7", lease)


def test_a_lease_that_is_written_during_a_removal_keeps_its_segments(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, LeaseAtTheReceipt())
    fill(journal)
    names = [info.name for info in journal.segments()]
    with pytest.raises(OperatorError, match="needed by pipeline lake until"):
        journal.remove(names[:3], NOW)
    assert [info.name for info in journal.segments()] == names
    assert all((tmp_path / name).exists() for name in names)
    assert read_removals(tmp_path, "one") == []
    release_lease(tmp_path, "one", "lake.7")
    assert journal.remove(names[:1], NOW).names == names[:1]
    journal.close()


def test_opening_withdraws_the_receipt_for_records_that_are_stored(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    fill(journal)
    infos = journal.segments()
    files = NoSecondUnlink()
    journal.close()
    journal = open_journal(tmp_path, files)
    with pytest.raises(JournalError):
        journal.remove([info.name for info in infos[:3]], 1)
    journal.close()
    assert [one.last for one in read_removals(tmp_path, "one")] == [infos[2].last_sequence]
    again = open_journal(tmp_path)
    assert again.first_sequence == infos[1].first_sequence
    assert [(one.first, one.last) for one in read_removals(tmp_path, "one")] == [
        (1, infos[1].first_sequence - 1)
    ]
    again.close()
