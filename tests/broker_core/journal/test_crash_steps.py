"""SIGKILL before, during and after each step of archive, compress and remove: the log opens intact.

A child process does the real work and kills itself.

A child process does the real thing and kills itself at one system call, the next child at the following one,
until one gets through. Both halves are killed: the worker's, which prepares a file, and the broker's, which
swaps it in.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_core.journal import segment_copies
from broker_core.journal.files import FileSystem
from broker_core.journal.segment_copies import compress_segment, copy_segment

from .support import INSTANCE, fill, open_journal, read_all

EVERYTHING = list(range(1, 241))
CHANGES = (
    "pwritev",
    "fdatasync",
    "fsync",
    "truncate",
    "reserve",
    "rename",
    "unlink",
    "sync_directory",
    "zero_fill",
)


def killing_files(at: int) -> FileSystem:
    """Return files that kill the process at change number `at`, alternately before and after the change."""
    files, done = FileSystem(), [0]

    def wrapped(name: str) -> Callable[..., object]:
        real = getattr(files, name)

        def call(*arguments: object) -> object:
            if done[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
            done[0] += 1
            made = real(*arguments)
            if done[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
            done[0] += 1
            return made

        return call

    for name in CHANGES:
        setattr(files, name, wrapped(name))
    return files


def child(work: Callable[[], None]) -> bool:
    """Run in a forked process; whether it was killed.

    AssertionError if it ended in another way than it should.
    """
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several sealed segments, and for the first a copy and a compressed form as a worker makes
    them.
    """
    path = tmp_path_factory.mktemp("log")
    journal = open_journal(path)
    fill(journal, 80, size=1_000)
    journal.close()
    journal = open_journal(path)
    first = journal.segments()[0]
    (path / "archive" / "prepared").mkdir()
    copy_segment(first.path, path / "archive" / "prepared" / first.name)
    (path / "journal" / "prepared").mkdir()
    compress_segment(first.path, path / "journal" / "prepared" / f"{first.name}.gz")
    journal.close()
    return path


def steps(
    home: Path, path: Path, act: Callable[[Path, FileSystem], None], check: Callable[[Path], None]
) -> int:
    """Kill at each step in turn; return the number of steps."""
    for at in range(1_000):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(home, path)
        killed = child(lambda at=at: act(path, killing_files(at)))
        check(path)
        if not killed:
            return at
    raise AssertionError("it never got through")


def open_with(path: Path, files: FileSystem):
    """Open the journal without counting; only later calls can be killed."""
    journal = open_journal(path)
    for owner in (journal, journal._swaps, journal._sealer):
        owner._files = files
    return journal


def check_intact(path: Path) -> None:
    """Check that all records are there once and in order.

    A second opening has nothing to repair, and no file is useless.
    """
    journal = open_journal(path)
    assert journal.recovery.quarantined == []
    assert journal.recovery.truncated_bytes == 0
    assert read_all(journal) == EVERYTHING
    journal.close()
    again = open_journal(path)
    assert again.recovery.clean
    assert again.recovery.reason == ""
    assert again.recovery.scanned_segments <= 1
    again.close()
    no_litter(path)


def no_litter(path: Path) -> None:
    files = [file for place in ("journal", "archive") for file in (path / place).glob(f"{INSTANCE}.*")]
    assert [file.name for file in files if file.suffix == ".tmp" and ".spare." not in file.name] == []
    segments = {file.name.split(".")[1] for file in files if ".journal" in file.name}
    assert {file.name.split(".")[1] for file in files if file.name.endswith(".index.gz")} <= segments


def first_name(home: Path) -> str:
    return sorted(path.name for path in (home / "journal").glob("*.journal"))[0]


@pytest.mark.parametrize("action", ["archive", "compress"])
def test_the_broker_is_killed_at_each_step_of_a_swap(home, tmp_path, action):
    name = first_name(home)

    def act(path: Path, files: FileSystem) -> None:
        journal = open_with(path, files)
        if action == "archive":
            journal.archive_swap(name, path / "archive" / "prepared" / name)
        else:
            journal.compress_swap(name, path / "journal" / "prepared" / f"{name}.gz")

    assert steps(home, tmp_path / "log", act, check_intact) > 12


def test_the_broker_is_killed_at_each_step_of_a_removal(home, tmp_path):
    names = sorted(path.name for path in (home / "journal").glob("*.journal"))[:3]
    left: set[int] = set()

    def act(path: Path, files: FileSystem) -> None:
        open_with(path, files).remove(names)

    def check(path: Path) -> None:
        journal = open_journal(path)
        assert journal.recovery.clean, journal.recovery.reason
        found = read_all(journal)
        assert found == list(range(journal.first_sequence, 241))
        left.add(journal.first_sequence)
        journal.close()
        no_litter(path)

    assert steps(home, tmp_path / "log", act, check) > 12
    assert len(left) == 4, "the oldest went first, one by one"


@pytest.mark.parametrize("action", ["archive", "compress"])
def test_the_worker_is_killed_at_each_step_of_preparing(home, tmp_path, action, monkeypatch):
    name = first_name(home)
    monkeypatch.setattr(segment_copies, "MEMBER_SIZE", 16 * 1024)

    def act(path: Path, files: FileSystem) -> None:
        counted = [0]
        real = {call: getattr(os, call) for call in ("write", "fsync")}

        def wrapped(call: str) -> Callable[..., object]:
            def run(*arguments: object) -> object:
                counted[0] += 1
                if counted[0] == at[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real[call](*arguments)

            return run

        for call in real:
            setattr(os, call, wrapped(call))
        source, prepared = path / "journal" / name, path / "journal" / "prepared" / "new"
        (copy_segment if action == "archive" else compress_segment)(source, prepared)

    at = [1]

    def check(path: Path) -> None:
        at[0] += 1
        check_intact(path)

    assert steps(home, tmp_path / "log", act, check) >= 5


def test_the_broker_is_killed_at_each_step_of_sealing(home, tmp_path):
    def act(path: Path, files: FileSystem) -> None:
        journal = open_journal(path, files=files)
        fill(journal, 40, size=1_000)
        journal.preallocate()
        journal.close()

    def check(path: Path) -> None:
        journal = open_journal(path)
        assert journal.recovery.quarantined == []
        assert read_all(journal) == list(range(1, journal.next_sequence))
        assert journal.next_sequence > 240
        assert journal.publishers.numbers()["p"] == journal.next_sequence - 1
        journal.close()
        no_litter(path)

    assert steps(home, tmp_path / "log", act, check) > 100
