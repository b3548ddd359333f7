"""A disk that is full or fails: named errors, no leftovers, and normal work when space is free again."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from broker_core.errors import JournalError

from .support import FailingFiles, batch_for, fill, open_journal, read_all


@pytest.fixture
def files():
    return FailingFiles()


@pytest.fixture
def journal(tmp_path, files):
    made = open_journal(tmp_path, files=files)
    yield made
    files.fail = lambda name: False
    made.close()


def test_disk_full_on_append_leaves_nothing_and_the_next_write_succeeds(journal, files):
    fill(journal, 3)
    files.short_by = 130
    with pytest.raises(JournalError) as caught:
        journal.write([batch_for(journal, 10), batch_for(journal, 13)])
    assert caught.value.code == "disk_full"
    assert journal.next_sequence == 10
    path = journal.segments()[0].path
    assert not any(path.read_bytes()[journal.segments()[0].nbytes :])
    files.fail = lambda name: False
    fill(journal, 3)
    assert read_all(journal) == list(range(1, 19))


def test_disk_full_at_the_roll(journal, files):
    fill(journal, 15, size=1_000)
    files.fail = lambda name: name == "reserve"
    batches, first = [], journal.next_sequence
    for _ in range(40):
        batches.append(batch_for(journal, first, size=1_000))
        first += 3
    with pytest.raises(JournalError, match="disk_full"):
        journal.write(batches)
    assert len(journal.segments()) == 1
    assert len(list(journal.directory.glob("*.journal"))) == 1
    files.fail = lambda name: False
    journal.write(batches)
    journal.sync()
    assert read_all(journal) == list(range(1, first))
    assert journal.publishers.numbers() == {"p": first - 1}


def test_disk_full_in_the_second_segment_of_a_write(journal, files):
    fill(journal, 15, size=1_000)
    written = 0

    def fail(name):
        nonlocal written
        written += name == "pwritev"
        return (
            name == "pwritev" and written == 3
        )  # the rest of the first, the header of the second, its batches

    files.fail = fail
    batches, first = [], journal.next_sequence
    for _ in range(40):
        batches.append(batch_for(journal, first, size=1_000))
        first += 3
    with pytest.raises(JournalError, match="disk_full"):
        journal.write(batches)
    assert journal.next_sequence == 46
    files.fail = lambda name: False
    fill(journal, 20, size=1_000)
    assert read_all(journal) == list(range(1, 106))


def test_disk_full_then_killed(tmp_path, journal, files):
    fill(journal, 3)
    files.short_by = 130
    with pytest.raises(JournalError):
        journal.write([batch_for(journal, 10), batch_for(journal, 13)])
    journal._directory_lock.close()
    again = open_journal(tmp_path)
    assert again.recovery.clean
    assert again.next_sequence == 10
    again.close()


def test_a_failed_append_that_cannot_be_cut_off_stops_the_journal(journal, files):
    fill(journal, 3)
    files.fail = lambda name: name in ("pwritev", "truncate")
    with pytest.raises(JournalError):
        journal.write([batch_for(journal, 10)])
    files.fail = lambda name: False
    with pytest.raises(JournalError):
        journal.write([batch_for(journal, 10)])
    assert read_all(journal) == list(range(1, 10))


def test_no_space_for_spare_files_is_reported_and_harmless(journal, files):
    files.fail = lambda name: name == "pwritev"
    with pytest.raises(JournalError, match="disk_full"):
        journal.preallocate()
    files.fail = lambda name: False
    assert not list(journal.directory.glob("*.spare.*"))
    fill(journal, 2)
    assert read_all(journal) == list(range(1, 7))


def test_a_failed_sync_stops_the_journal(journal, files):
    fill(journal, 2)
    journal.write([batch_for(journal, 7)])
    files.fail, files.errno = (lambda name: name == "fdatasync"), errno.EIO
    with pytest.raises(JournalError) as caught:
        journal.sync()
    assert caught.value.code == "journal_failed"
    assert journal.durable_sequence == 6
    files.fail = lambda name: False
    for call in (journal.sync, lambda: journal.write([batch_for(journal, 10)])):
        with pytest.raises(JournalError, match="journal_failed"):
            call()
    assert read_all(journal) == list(range(1, 7))


def test_an_input_output_error_on_append_has_its_own_code(journal, files):
    files.fail, files.errno = (lambda name: name == "pwritev"), errno.EIO
    with pytest.raises(JournalError, match="journal_failed"):
        journal.write([batch_for(journal, 1)])


def test_a_roll_is_durable_before_sync_returns(journal, files):
    fill(journal, 15, size=1_000)
    files.calls.clear()
    fill(journal, 10, size=1_000)
    first, second = (segment.name for segment in journal.segments())
    rolled = files.calls.index(("sync_directory", "journal"))
    assert ("fdatasync", first) in files.calls[:rolled]
    assert ("fdatasync", second) in files.calls[:rolled]
    assert journal.durable_sequence == journal.next_sequence - 1


def test_a_real_limit_on_file_size(tmp_path):
    """The kernel itself fails the write: with RLIMIT_FSIZE the journal raises disk_full, and works on."""
    program = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        from broker_core.errors import JournalError
        from broker_core.journal.journal import JournalOptions
        from tests_support import batch_for, fill, open_journal, read_all
        journal = open_journal(Path(sys.argv[1]), JournalOptions(16_384, 1))
        fill(journal, 2)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
        try:
            journal.write([batch_for(journal, 7, 100, size=1_000)])
        except JournalError as error:
            assert error.code == "disk_full", error
        else:
            raise SystemExit("not refused")
        assert journal.next_sequence == 7
        fill(journal, 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        fill(journal, 1, count=100, size=1_000)
        assert read_all(journal) == list(range(1, 113))
        journal.close()
        print("fine")
    """)
    (tmp_path / "tests_support.py").write_bytes((Path(__file__).parent / "support.py").read_bytes())
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}:{tmp_path}"},
    )
    assert done.stdout == "fine\n", done.stderr
