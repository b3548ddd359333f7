"""Removals are recorded before files are deleted, and the records stay readable for other processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_core.errors import JournalError
from broker_core.journal import removal_records
from broker_core.journal.files import FileSystem
from broker_core.journal.journal import Journal
from broker_core.journal.removal_records import RemovalRecord, append_removal, read_removals, removals_path
from tests.pipeline.support import SMALL, append, numbered_messages

FILES = FileSystem()


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
    for n in range(1, 7):
        append_removal(FILES, tmp_path, "one", RemovalRecord(n, n, 1, 10, 1, n, n, n))
    kept = read_removals(tmp_path, "one")
    assert [(one.first, one.last, one.records, one.segments) for one in kept] == [
        (1, 4, 4, 4),
        (5, 5, 1, 1),
        (6, 6, 1, 1),
    ]
