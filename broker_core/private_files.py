"""File modes of Sluice: directories 0700 and files 0600, for the user that runs Sluice only."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PRIVATE_UMASK: Final = 0o077
"""Umask of all processes of Sluice: other users of the machine must not read journals, database and lake."""
OTHERS: Final = 0o007
"""Permission bits of users outside the file's group."""


def restrict_permissions(path: Path) -> None:
    """Remove the permissions of the group and of others from a file or directory that belongs to this user.

    Symbolic links are not changed.

    Raises:
        PermissionError: Others have permissions that this user may not remove.
    """
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode) or not mode & PRIVATE_UMASK:
        return
    if os.geteuid() in (0, found.st_uid):
        path.chmod(mode & ~PRIVATE_UMASK)
    elif mode & OTHERS:
        # A volume may belong to another user and admit this one by its group (fsGroup in Kubernetes). So
        # permissions of the group are accepted there, those of others are not.
        raise PermissionError(
            f"{path} is open to other users (mode {mode:04o}) and belongs to user {found.st_uid}."
        )


def restrict_tree_permissions(roots: Iterable[Path]) -> list[str]:
    """Tighten everything below some directories. Returns a sentence for each path that cannot be tightened.

    Symbolic links are not followed.
    """
    problems = []
    for root in roots:
        for folder, directories, files in os.walk(root):
            for path in (Path(folder), *(Path(folder, name) for name in (*directories, *files))):
                try:
                    restrict_permissions(path)
                except FileNotFoundError:
                    continue  # removed meanwhile by a running process
                except PermissionError as problem:
                    problems.append(str(problem))
    return problems
