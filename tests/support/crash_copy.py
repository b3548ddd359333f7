"""What a killed process would leave of its directory, copied while it goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

MAX_TRIES = 100


def copy_live_directory(home: Path, target: Path) -> None:
    """Copy a directory whose files are made, renamed and removed meanwhile, by other threads, into a new one.

    A walk isn't one moment: a file renamed during it may be found under neither of its names, or be gone when
    its turn comes. So it counts when the same names were there before and after it.
    """
    for _ in range(MAX_TRIES):
        before = _names(home)
        try:
            shutil.copytree(home, target, ignore=_sockets)
        except (shutil.Error, FileNotFoundError) as problem:
            told = problem
        else:
            if _names(home) == before:
                return
            told = AssertionError(f"{home} has other files each time")
        shutil.rmtree(target, ignore_errors=True)
    raise told


def _names(home: Path) -> list[Path]:
    return sorted(home.rglob("*"))


def _sockets(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if (Path(folder) / name).is_socket()}
