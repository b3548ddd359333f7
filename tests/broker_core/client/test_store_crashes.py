"""`kill -9` at each file operation of a publish store, before it and in the middle of a write.

No stored message is lost.
"""

from __future__ import annotations

import os
import pathlib
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_core.batch import build_single_topic_batch
from broker_core.client import FileBookmarkStore, FilePublishStore, store_file
from broker_core.errors import OperatorError

STEPS = ("open", "pwrite", "pwritev", "ftruncate", "fsync", "fdatasync", "close")


class KilledOs:
    """The `os` module of a process that is killed at its operation number `at`."""

    def __init__(self, at: int, halfway: bool) -> None:
        self._left = at
        self._halfway = halfway

    def __getattr__(self, name: str) -> Any:
        do = getattr(os, name)
        return self._counted(name, do) if name in STEPS else do

    def _counted(self, name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            if self._left == 0:
                if self._halfway and name in ("pwrite", "pwritev"):
                    file, data, at = arguments
                    whole = data if name == "pwrite" else b"".join(data)
                    os.pwrite(file, whole[: len(whole) // 2], at)
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1
            return do(*arguments)

        return step

    def replace(self, *paths: Any) -> Any:
        """Path.replace, which is a step, too."""
        return self._counted("replace", _replace)(*paths)


_replace = pathlib.Path.replace


def killed_at(step: int, halfway: bool, work: Callable[[], None]) -> bool:
    """Do the work in a process that is killed at operation `step`; return False if it ended before."""
    child = os.fork()
    if child == 0:
        dying = KilledOs(step, halfway)
        store_file.os = dying  # type: ignore[attr-defined]
        pathlib.Path.replace = lambda self, target: dying.replace(self, target)  # type: ignore[method-assign]
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


def batch(first: int) -> bytearray:
    return build_single_topic_batch("p", "a", [b"x" * 10] * 2, first)


@pytest.mark.parametrize("halfway", [False, True], ids=["before", "halfway"])
def test_a_bookmark_store_killed_at_any_step_goes_on_where_it_was(tmp_path: Path, halfway: bool) -> None:
    def work(path: Path) -> None:
        store = FileBookmarkStore(path, sync=True)
        store.record("s", "one", 6)
        store.compact()
        store.record("s", "one", 7)

    step = 0
    while True:
        path = tmp_path / f"marks-{step}"
        store = FileBookmarkStore(path)
        store.record("s", "one", 5)
        store.record("other", "one", 9)
        store.close()
        killed = killed_at(step, halfway, lambda path=path: work(path))  # type: ignore[misc]
        again = FileBookmarkStore(path)
        assert again.most_recent("s") in (["one|5|", "one|6|", "one|7|"] if killed else ["one|7|"])
        assert again.most_recent("other") == "one|9|"
        assert not path.with_name(path.name + ".tmp").exists()
        again.close()
        if not killed:
            break
        step += 1
    assert step > 10, "opening, two moves and a compaction take more steps"


@pytest.mark.parametrize("halfway", [False, True], ids=["before", "halfway"])
def test_a_publish_store_killed_at_any_step_keeps_what_is_not_acknowledged(
    tmp_path: Path, halfway: bool
) -> None:
    def work(path: Path) -> None:
        store = FilePublishStore(path, sync=True)
        store.add(9, 10, batch(9))
        store.compact()
        store.discard_through(6)
        store.add(11, 12, batch(11))

    step, kept = 0, [(5, 6), (7, 8)]
    while True:
        path = tmp_path / f"store-{step}"
        store = FilePublishStore(path)
        for first in (1, 3, 5, 7):
            store.add(first, first + 1, batch(first))
        store.discard_through(4)
        store.close()
        killed = killed_at(step, halfway, lambda path=path: work(path))  # type: ignore[misc]
        again = FilePublishStore(path)
        found = [(stored.first, stored.last) for stored in again.pending()]
        possible = [kept, [*kept, (9, 10)], [(7, 8), (9, 10)], [(7, 8), (9, 10), (11, 12)]]
        assert found in (possible if killed else possible[-1:])
        assert again.last_sequence >= 8, "a number is never used twice"
        assert [bytes(stored.batch) for stored in again.pending()] == [
            bytes(batch(first)) for first, _ in found
        ]
        again.close()
        if not killed:
            break
        step += 1
    assert step > 10


def filled_store(path: Path, kind: type[FileBookmarkStore] | type[FilePublishStore]) -> None:
    """Write a store with three updates, of which the middle one is damaged."""
    store: Any = kind(path)
    begins = []
    for number in (1, 3, 5):
        begins.append(path.stat().st_size)
        if kind is FileBookmarkStore:
            store.record("s", "one", number)
        else:
            store.add(number, number + 1, batch(number))
    store.close()
    raw = bytearray(path.read_bytes())
    raw[begins[1] + 12] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("failing", ["pread", "torn", "ftruncate", "fsync"])
@pytest.mark.parametrize("kind", [FileBookmarkStore, FilePublishStore])
def test_a_store_that_cannot_be_opened_is_unlocked_and_says_which_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[FileBookmarkStore] | type[FilePublishStore],
    failing: str,
) -> None:
    path = tmp_path / "store"
    if failing == "torn":
        filled_store(path, kind)
        path.with_name("store.torn").mkdir()
    elif failing == "fsync":
        kind(path).close()
    else:
        path.write_bytes(b"SLUICE-")  # a torn first line: read, then cut

    def refuse(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        if failing != "torn":
            patch.setattr(store_file.os, failing, refuse)
        with pytest.raises(OperatorError) as caught:
            kind(path, sync=True)
        assert (caught.value.code, str(path) in caught.value.sentence) == ("store_failed", True)
        del caught
    if failing == "torn":
        path.with_name("store.torn").rmdir()
    kind(path).close()  # not locked


def test_a_store_whose_directory_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OperatorError) as caught:
        FilePublishStore(tmp_path / "file" / "store")
    assert caught.value.code == "store_failed"


def test_after_a_rename_the_new_file_is_in_use_and_a_synced_write_waits_for_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is the third thing synced; until it is, a power failure may bring the old file back."""
    path = tmp_path / "store"
    store = FilePublishStore(path, sync=True)
    for first in (1, 3, 5):
        store.add(first, first + 1, batch(first))
    store.discard_through(2)
    fsync, directories = os.fsync, [0]

    def refuse_directories(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            directories[0] += 1
            raise OSError(5, "Input/output error")
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(store_file.os, "fsync", refuse_directories)
        store.compact()
        assert directories == [1]
        assert os.path.samestat(os.fstat(store._file._file), path.stat())
        assert [(stored.first, bytes(stored.batch)) for stored in store.pending()] == [
            (first, bytes(batch(first))) for first in (3, 5)
        ]
        with pytest.raises(OperatorError) as caught:
            store.add(7, 8, batch(7))
        assert caught.value.code == "store_failed"
    store.add(7, 8, batch(7))
    store.close()
    again = FilePublishStore(path)
    assert [stored.first for stored in again.pending()] == [3, 5, 7]
    again.close()
