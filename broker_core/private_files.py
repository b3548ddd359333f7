"""Modes of Sluice's files: directories 0700 and files 0600, for the user that runs Sluice alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PRIVATE_UMASK: Final = 0o077
"""Umask of every process of Sluice: journals, database and lake hold what no other user of the machine may
read."""
OTHERS: Final = 0o007


def tighten(path: Path) -> None:
    """Take a file's or directory's rights away from its group and from others, where it belongs to this user.

    A link is left alone. Raises PermissionError when others have rights that this user may not take away.
    """
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode) or not mode & PRIVATE_UMASK:
        return
    if os.geteuid() in (0, found.st_uid):
        path.chmod(mode & ~PRIVATE_UMASK)
    elif mode & OTHERS:
        # A volume's owner may be another user than the one that is let in by its group (fsGroup); others
        # never are.
        raise PermissionError(
            f"{path} is open to other users (mode {mode:04o}) and belongs to user {found.st_uid}."
        )


def tighten_trees(roots: Iterable[Path]) -> list[str]:
    """Tighten everything below some directories; return a sentence for each path that can't be.

    Links aren't followed.
    """
    problems = []
    for root in roots:
        for folder, directories, files in os.walk(root):
            for path in (Path(folder), *(Path(folder, name) for name in (*directories, *files))):
                try:
                    tighten(path)
                except FileNotFoundError:
                    continue  # removed meanwhile by a process that runs
                except PermissionError as problem:
                    problems.append(str(problem))
    return problems
