"""`kill -9` at each step of storing managed replays: the file is the old or the new one, complete."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from broker_core.journal import files
from broker_core.replay.positions.file import ManagedReplayRecord, encode_positions, load_positions
from tests.support.brokers import ask, running_broker

STEPS = ("open", "pwritev", "fsync", "close", "rename")
MADE = {"client": "reader", "topic": "a", "bookmark": "0"}


class KilledOs:
    """The `os` module of a process that is killed at its operation number `at`, or in the middle of a
    write.
    """

    def __init__(self, at: int, halfway: bool) -> None:
        self._left = at
        self._halfway = halfway

    def __getattr__(self, name: str) -> Any:
        do = getattr(os, name)
        return self.counted(name, do) if name in STEPS else do

    def counted(self, name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            if self._left == 0:
                if self._halfway and name == "pwritev":
                    file, buffers, at = arguments
                    whole = b"".join(buffers)
                    os.pwrite(file, whole[: len(whole) // 2], at)
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1
            return do(*arguments)

        return step


def killed_at(step: int, halfway: bool, work: Callable[[], None]) -> bool:
    """Do the work in a process that is killed at operation `step`; return False if it ended before."""
    child = os.fork()
    if child == 0:
        dying, rename = KilledOs(step, halfway), files.FileSystem.rename
        files.os = dying  # type: ignore[attr-defined]
        files.FileSystem.rename = lambda self, *paths: dying.counted("rename", rename)(self, *paths)  # type: ignore[method-assign]
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


@pytest.mark.parametrize("halfway", [False, True], ids=["before", "halfway"])
def test_killed_at_any_step_of_storing_them_the_old_or_the_new_ones_are_there(
    tmp_path: Path, halfway: bool
) -> None:
    def with_broker(home: Path, do: str, **fields: Any) -> Any:
        async def run() -> Any:
            async with running_broker(home) as broker:
                return await ask(broker, do, **fields)

        return asyncio.run(run())

    step = 0
    while True:
        home = tmp_path / f"{step}"
        home.mkdir()
        path = home / "journal" / "test-1.kept.json"
        with_broker(home, "replay_create", name="first", **MADE)
        made = load_positions(files.FileSystem(), path)
        paused = encode_positions(
            [structs.replace(one, paused=True) for one in made if isinstance(one, ManagedReplayRecord)]
        )
        killed = killed_at(step, halfway, partial(files.replace_durably, files.FileSystem(), path, paused))
        state = {one["name"]: one["state"] for one in with_broker(home, "replays")}
        assert state in ([{"first": "waiting"}, {"first": "paused"}] if killed else [{"first": "paused"}])
        assert not list(path.parent.glob("*.tmp")), "what the kill left beside is swept"
        if not killed:
            break
        step += 1
    assert step >= 6, "open, write, sync, close, rename, and the directory's sync"
