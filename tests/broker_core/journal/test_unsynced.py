"""Records that may not be on disk are written again at opening; missing acknowledged records stop it.

A journal whose files are deleted accepts nothing more.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from broker_core.errors import JournalError, OperatorError
from broker_core.journal.files import FileSystem
from broker_core.journal.frontier_file import KnownLog, frontier_path, read_mark
from broker_core.journal.journal import Journal
from broker_core.journal.recovery import JournalRecovery
from broker_core.journal.segment_reader import open_source, read_header

from .support import INSTANCE, FailingFiles, accept, batch_for, fill, open_journal, read_all
from .test_crash_steps import child, killing_files
from .test_journal import kill


def write_beyond_durable(home: Path, batches: int = 5, size: int = 100) -> Journal:
    """Write 30 durable records, then some that are not synced; the process ends."""
    journal = open_journal(home)
    fill(journal, 10)
    for _ in range(batches):
        journal.write([batch_for(journal, journal.next_sequence, size=size)])
    kill(journal)
    return journal


class TrackingFiles(FileSystem):
    """A file system that records which files were written and synced before truncations."""

    def __init__(self) -> None:
        self.synced: set[str] = set()
        self.calls: list[str] = []

    def pwritev(self, fd, buffers, offset):
        self.calls.append(f"write {_name(fd)}")
        return super().pwritev(fd, buffers, offset)

    def fsync(self, fd):
        self.calls.append(f"sync {_name(fd)}")
        super().fsync(fd)

    def rename(self, source, target):
        self.calls.append(f"name {target.name}")
        super().rename(source, target)

    def sync_directory(self, directory):
        self.calls.append("sync directory")
        super().sync_directory(directory)

    def truncate(self, fd, length):
        self.calls.append(f"cut {_name(fd)}")
        super().truncate(fd, length)


def _name(fd: int) -> str:
    return Path(f"/proc/self/fd/{fd}").readlink().name.split(".journal")[0].rpartition(".")[2]


def test_records_behind_the_mark_are_in_a_new_segment_on_disk_before_the_old_one_is_cut(tmp_path):
    write_beyond_durable(tmp_path)
    files = TrackingFiles()
    found = JournalRecovery(files, tmp_path / "journal", INSTANCE, None)
    found.run()
    old, new = f"{1:020}", f"{31:020}"
    wanted = [
        f"write {new}",
        f"sync {new}",
        f"name {INSTANCE}.{new}.journal",
        "sync directory",
        f"cut {old}",
        f"sync {old}",
    ]
    steps = iter(files.calls)
    assert all(step in steps for step in wanted), files.calls
    journal = open_journal(tmp_path)
    assert [segment.first_sequence for segment in journal.segments()] == [1, 31]
    assert read_all(journal) == list(range(1, 46))
    assert journal.publishers.numbers()["p"] == 45
    journal.close()


def test_it_says_so_and_the_next_opening_has_nothing_to_do(tmp_path):
    write_beyond_durable(tmp_path)
    journal = open_journal(tmp_path)
    assert "Records 31 to 45 weren't known to be on disk and were written again." in journal.recovery.reason
    assert [(one.state, one.compressed) for one in journal.segments()] == [
        ("sealed", False),
        ("current", False),
    ]
    fill(journal, 2)
    journal.close()
    again = open_journal(tmp_path)
    assert again.recovery.reason == "" and again.recovery.clean
    assert read_all(again) == list(range(1, 52))
    again.close()


def test_a_segment_that_was_begun_behind_the_mark_is_written_again_as_a_whole(tmp_path):
    journal = write_beyond_durable(tmp_path, batches=60, size=1_000)
    assert len(journal.segments()) > 2
    again = open_journal(tmp_path)
    assert read_all(again) == list(range(1, 211))
    assert [s.state for s in again.segments()][-1] == "current"
    assert all(s.state == "sealed" for s in again.segments()[:-1])
    again.close()


def test_without_a_mark_nothing_that_has_no_sidecar_is_believed(tmp_path):
    write_beyond_durable(tmp_path)
    frontier_path(tmp_path / "journal", INSTANCE).unlink()
    journal = open_journal(tmp_path)
    assert "Records 1 to 45 weren't known" in journal.recovery.reason
    assert [segment.first_sequence for segment in journal.segments()] == [1]
    assert read_all(journal) == list(range(1, 46))
    journal.close()


def test_damage_behind_the_mark_stays_a_hole(tmp_path):
    journal = write_beyond_durable(tmp_path)
    stored = journal.read_with_positions(37, 1, 45)[0]
    path = tmp_path / "journal" / f"{INSTANCE}.{1:020}.journal"
    with path.open("r+b") as file:
        file.seek(stored[0].offset + 120)
        file.write(b"\xff")
    again = open_journal(tmp_path)
    assert [(hole.first_sequence, hole.last_sequence) for hole in again.missing_ranges] == [(37, 39)]
    assert read_all(again) == [s for s in range(1, 46) if not 37 <= s <= 39]
    again.close()


@pytest.mark.parametrize("size", [100, 1_000], ids=["one segment", "several"])
def test_killed_at_each_step_of_writing_again(tmp_path, size):
    home, path = tmp_path / "home", tmp_path / "log"
    home.mkdir()
    last = write_beyond_durable(home, batches=60, size=size).next_sequence - 1
    at = 0
    while True:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(home, path)
        killed = child(lambda at=at: open_journal(path, files=killing_files(at)).close())
        journal = open_journal(path)
        assert read_all(journal) == list(range(1, last + 1))
        assert journal.recovery.quarantined == []
        assert journal.recovery.set_aside == []
        fill(journal, 1)
        journal.close()
        again = open_journal(path)
        assert again.recovery.reason == ""
        assert not [p for p in (path / "journal").iterdir() if p.suffix == ".tmp" and ".spare." not in p.name]
        again.close()
        if not killed:
            break
        at += 1
    assert at > 12


# Whose log it is.


def test_a_log_keeps_its_identity_and_every_segment_bears_it(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 60, size=1_000)
    journal.close()
    again = open_journal(tmp_path)
    assert again.identity == journal.identity
    assert {read_header(open_source(s.path)).log for s in again.segments()} == {journal.identity}
    assert read_mark(tmp_path / "journal", INSTANCE).log == journal.identity
    again.close()


def test_another_log_in_its_place_is_refused_until_an_operator_accepts_it(tmp_path):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    known = None
    for home in (mine, theirs):
        journal = open_journal(home)
        fill(journal, 10)
        journal.close()
        known = known or KnownLog(journal.identity, 30)
    with pytest.raises(OperatorError) as caught:
        open_journal(theirs, known=known)
    assert caught.value.code == "journal_other"
    assert "journal accept --instance sluice-t" in caught.value.fix
    open_journal(mine, known=known).close()
    mark = frontier_path(theirs / "journal", INSTANCE)
    shutil.copy(frontier_path(mine / "journal", INSTANCE), mark)
    with pytest.raises(OperatorError, match="journal_other"):
        open_journal(theirs)
    accept(theirs)
    opened = open_journal(theirs)
    assert opened.identity == journal.identity
    assert read_all(opened) == list(range(1, 31))
    opened.close()


def test_fewer_records_than_the_control_plane_heard_of_are_refused(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 10)
    journal.close()
    known = KnownLog(journal.identity, 45)
    with pytest.raises(OperatorError) as caught:
        open_journal(tmp_path, known=known)
    assert (caught.value.code, caught.value.details) == ("journal_behind", {"found": 30, "acknowledged": 45})
    accept(tmp_path, known)
    again = open_journal(tmp_path, known=known)
    assert again.next_sequence == 46
    fill(again, 1)
    again.close()
    third = open_journal(tmp_path, known=known)
    assert read_all(third) == [*range(1, 31), 46, 47, 48]
    third.close()


def test_an_empty_directory_in_the_place_of_a_known_log_is_refused(tmp_path):
    with pytest.raises(OperatorError, match="journal_behind"):
        open_journal(tmp_path, known=KnownLog(uuid4(), 1))
    new = open_journal(tmp_path, known=KnownLog(None, 0))
    assert isinstance(new.identity, UUID)
    new.close()


def test_what_was_accepted_once_says_nothing_of_what_is_lost_later(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 10)
    journal.close()
    accept(tmp_path, KnownLog(None, 45))
    again = open_journal(tmp_path)
    fill(again, 2)
    newest = again.segments()[-1].path
    again.close()
    newest.unlink()
    with pytest.raises(OperatorError) as caught:
        open_journal(tmp_path)
    assert caught.value.details == {"found": 30, "acknowledged": 51}


# Files that are taken away.


def remove(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def replace(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.write_bytes(path.with_name("elsewhere").read_bytes())


@pytest.mark.parametrize("take", [remove, move, replace])
@pytest.mark.parametrize("what", ["lock", "segment"])
def test_a_journal_whose_files_are_taken_calls_nothing_durable_any_more(tmp_path, take, what):
    journal = open_journal(tmp_path)
    fill(journal, 2)
    take(journal.directory / f"{INSTANCE}.lock" if what == "lock" else journal.segments()[0].path)
    journal.write([batch_for(journal, 7)])
    with pytest.raises(JournalError) as caught:
        journal.sync()
    assert caught.value.code == "journal_taken"
    assert (journal.durable_sequence, journal.publishers.numbers()) == (6, {"p": 6})
    with pytest.raises(JournalError, match="journal_taken"):
        journal.write([batch_for(journal, 10)])
    journal.close()


@pytest.mark.parametrize("left", [0, 100])
@pytest.mark.parametrize("writes", [False, True])
def test_a_segment_that_is_cut_while_it_is_written_calls_nothing_durable_any_more(tmp_path, left, writes):
    journal = open_journal(tmp_path)
    fill(journal, 2)
    os.truncate(journal.segments()[0].path, left)
    if writes:
        journal.write([batch_for(journal, 7)])
    with pytest.raises(JournalError, match="journal_taken") as caught:
        journal.sync() if writes else journal.check()
    assert "has cut" in caught.value.sentence
    assert journal.durable_sequence == 6
    journal.close()


def test_it_is_noticed_without_a_record_too(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 2)
    journal.check()
    (journal.directory / f"{INSTANCE}.lock").unlink()
    with pytest.raises(JournalError, match="journal_taken"):
        journal.check()
    assert journal.failure is not None
    journal.close()


def test_a_swap_of_a_sealed_segment_is_no_theft(tmp_path):
    from broker_core.journal.segment_copies import copy_segment

    journal = open_journal(tmp_path)
    fill(journal, 60, size=1_000)
    journal.finish_sealed()
    first = journal.segments()[0]
    copy_segment(first.path, tmp_path / "archive" / "prepared")
    journal.archive_swap(first.name, tmp_path / "archive" / "prepared")
    journal.check()
    fill(journal, 1)
    journal.close()


def test_the_second_writer_after_the_lock_was_removed_and_the_first_are_never_both_believed(tmp_path):
    first = open_journal(tmp_path)
    fill(first, 2)
    (first.directory / f"{INSTANCE}.lock").unlink()
    second = open_journal(tmp_path)
    first.write([batch_for(first, 7)])
    with pytest.raises(JournalError, match="journal_taken"):
        first.sync()
    fill(second, 1)
    assert second.durable_sequence == 9
    first.close()
    second.close()


# Syncs that fail.


def test_publishers_are_noted_when_their_records_are_durable(tmp_path):
    files = FailingFiles()
    journal = open_journal(tmp_path, files=files)
    fill(journal, 2)
    journal.write([batch_for(journal, 7, publisher="q")])
    assert journal.publishers.numbers() == {"p": 6}
    files.fail = lambda name: name == "fdatasync"
    with pytest.raises(JournalError):
        journal.sync()
    assert journal.publishers.numbers() == {"p": 6}
    files.fail = lambda name: False
    journal.close()
    again = open_journal(tmp_path)
    assert again.publishers.numbers() == {"p": 6, "q": 9}, "it was written again, and is durable now"
    again.close()


def test_a_segment_that_cannot_be_closed_stops_the_journal(tmp_path):
    files = FailingFiles()
    journal = open_journal(tmp_path, files=files)
    fill(journal, 25, size=1_000)
    files.fail = lambda name: name == "fdatasync"
    with pytest.raises(JournalError):
        journal.preallocate()
    files.fail = lambda name: False
    with pytest.raises(JournalError):
        journal.write([batch_for(journal, journal.next_sequence)])
    journal.close()


def test_the_epoch_goes_on_when_the_records_are_gone(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 1)
    journal.close()
    journal.segments()[0].path.unlink()
    accept(tmp_path)
    again = open_journal(tmp_path)
    assert again.epoch > journal.epoch
    again.close()
