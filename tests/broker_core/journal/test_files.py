"""Replacing a small file: after any failure at any step, the old or the new file is there, complete."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.batch import Buffer
from broker_core.journal.files import (
    FileSystem,
    OpenFile,
    remove_temporaries,
    replace_durably,
    temporary_target,
)

from .support import FailingFiles

STEPS = ("pwritev", "fsync", "rename", "sync_directory")


class ProcessKilled(BaseException):
    """The process was killed; no later step happens."""


class KilledFiles(FailingFiles):
    """A file system that writes `at_once` bytes per write and kills the process before call number `at`."""

    def __init__(self, at: int, at_once: int) -> None:
        super().__init__()
        self._at = at
        self._at_once = at_once

    def _note(self, name: str, what: object = "") -> None:
        if len(self.calls) == self._at:
            raise ProcessKilled
        super()._note(name, what)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        whole = b"".join(buffers)
        return super().pwritev(fd, [whole[: self._at_once]], offset)


@given(
    old=st.none() | st.binary(max_size=50),
    new=st.binary(min_size=1, max_size=200),
    at=st.integers(0, 30),
    at_once=st.integers(1, 80),
)
def test_killed_at_any_step_of_writes_of_any_length(
    tmp_path_factory: pytest.TempPathFactory, old: bytes | None, new: bytes, at: int, at_once: int
) -> None:
    path = tmp_path_factory.mktemp("killed") / "i.small"
    if old is not None:
        path.write_bytes(old)
    files = KilledFiles(at, at_once)
    try:
        replace_durably(files, path, new)
        assert path.read_bytes() == new
    except ProcessKilled:
        assert (path.read_bytes() if path.exists() else None) in (old, new)
    remove_temporaries(FileSystem(), path)
    assert list(path.parent.iterdir()) == ([path] if path.exists() else [])


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_says_so_and_leaves_nothing_beside(tmp_path: Path, step: str) -> None:
    path, files = tmp_path / "i.small", FailingFiles()
    path.write_bytes(b"old")
    files.fail = lambda name: name == step
    with pytest.raises(OSError, match="No space left"):
        replace_durably(files, path, b"new")
    assert path.read_bytes() == (b"new" if step == "sync_directory" else b"old")
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_fills_up_in_the_middle_of_a_write_leaves_the_old_file(tmp_path: Path) -> None:
    path, files = tmp_path / "i.small", FailingFiles()
    path.write_bytes(b"old")
    files.short_by = 2
    with pytest.raises(OSError, match="No space left"):
        replace_durably(files, path, b"newer")
    assert path.read_bytes() == b"old"


def test_the_bytes_are_on_disk_before_they_have_the_name_and_the_name_after(tmp_path: Path) -> None:
    files = FailingFiles()
    replace_durably(files, tmp_path / "i.small", b"new")
    assert [name for name, _ in files.calls] == list(STEPS)
    synced = files.calls[1][1]
    assert (temporary_target(synced), files.calls[2][1], files.calls[3][1]) == (
        "i.small",
        "i.small",
        tmp_path.name,
    )


@pytest.mark.parametrize(("mode", "umask"), [(0o640, 0o022), (0o600, 0o000)])
def test_it_may_be_read_by_whom_it_should(tmp_path: Path, mode: int, umask: int) -> None:
    before = os.umask(umask)
    try:
        replace_durably(FileSystem(), tmp_path / "x", b"new", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode


def test_two_who_replace_one_file_at_once_do_not_mix_their_bytes(tmp_path: Path) -> None:
    path, contents = tmp_path / "i.small", [bytes([number]) * 10_000 for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda content: replace_durably(FileSystem(), path, content), contents))
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("i.clients.ack.0123abcd.tmp", "i.clients.ack"),
        ("i.clients.ack.tmp", None),
        ("i.clients.ack", None),
        ("i.0123abcd.tmp.x", None),
        ("i.kept.json.0123abcd.tmp", "i.kept.json"),
    ],
)
def test_a_temporary_file_names_the_one_it_was_for(name: str, of: str | None) -> None:
    assert temporary_target(name) == of


def test_sweeping_leaves_what_is_of_other_files(tmp_path: Path) -> None:
    others = ["i.small.json.0123abcd.tmp", "i.small.torn", "j.small.0123abcd.tmp", "i.small"]
    for name in (*others, "i.small.0123abcd.tmp"):
        (tmp_path / name).touch()
    remove_temporaries(FileSystem(), tmp_path / "i.small")
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(others)


def test_a_file_is_in_place_until_its_path_stands_for_another_or_none(tmp_path: Path) -> None:
    path, aside = tmp_path / "ä.lock", tmp_path / "aside"
    handle = OpenFile(path, os.O_RDWR | os.O_CREAT)
    assert handle.is_current
    path.rename(aside)
    assert not handle.is_current
    path.touch()
    assert not handle.is_current, "another of its name"
    aside.rename(path)
    assert handle.is_current
    tmp_path.rename(tmp_path.with_name("moved"))
    tmp_path.touch()
    with pytest.raises(NotADirectoryError, match=r"ä\.lock"):
        _ = handle.is_current
    handle.close()
