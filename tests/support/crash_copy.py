"""Copies of a directory as a killed process would leave it, taken while the process runs."""

from __future__ import annotations

import shutil
from pathlib import Path

MAX_TRIES = 100


def copy_live_directory(home: Path, target: Path) -> None:
    """Copy a directory in which other threads create, rename and remove files.

    A walk is not atomic: it may find a file that is renamed meanwhile under neither name. A copy counts only
    if the same names existed before and after it.
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
