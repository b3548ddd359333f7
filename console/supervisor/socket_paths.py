"""Where Unix sockets can live: the kernel limits their paths, and a long SLUICE_HOME can pass that limit."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from broker_core.errors import OperatorError

LONGEST_PATH = 107  # bytes: sockaddr_un.sun_path holds 108, one of them the final zero


def is_path_short_enough(path: Path) -> bool:
    """Whether a Unix socket can have this path."""
    return len(os.fsencode(path)) <= LONGEST_PATH


def run_directory(home: Path, names: Iterable[str], temporary: Path | None = None) -> Path:
    """`home/run`, or when a socket of one of these names wouldn't fit there, one below the temporary directory.

    Pure: the same answer in every process, and nothing is made (see `prepare`). The fall-back is named by user and by a
    digest of `home`, so that two installations never share one.
    """
    wanted = home / "run"
    if all(is_path_short_enough(wanted / name) for name in names):
        return wanted
    digest = hashlib.blake2b(os.fsencode(home), digest_size=6).hexdigest()
    root = temporary if temporary is not None else Path(tempfile.gettempdir())
    return root / f"sluice-{os.getuid()}-{digest}"


def prepare_directory(directory: Path) -> None:
    """Make the sockets' directory, for its owner alone. Refuses one that somebody else made at that name."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = directory.lstat().st_uid
    if directory.is_symlink() or owner != os.getuid():
        sentence = f"{directory} belongs to user {owner}, not to us; it can't hold our sockets."
        raise OperatorError("bad_run_directory", sentence, "Remove it, or give SLUICE_HOME a shorter path.")
