"""Directory of Unix sockets.

The kernel limits the length of their paths, which a long SLUICE_HOME can exceed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from broker_core.errors import OperatorError

LONGEST_PATH = 107
"""Maximum bytes of a socket's path: sockaddr_un.sun_path has 108, including the final zero."""


def is_path_short_enough(path: Path) -> bool:
    """Whether a Unix socket can have this path."""
    return len(os.fsencode(path)) <= LONGEST_PATH


def run_directory(home: Path, names: Iterable[str], temporary: Path | None = None) -> Path:
    """Return `home/run`, or a directory below the temporary one if the sockets' paths would be too long.

    Pure.

    Every process gets the same answer. Nothing is created (see `prepare_directory`). The fallback's name
    contains the user and a digest of `home`, so that two installations never share it.
    """
    preferred = home / "run"
    if all(is_path_short_enough(preferred / name) for name in names):
        return preferred
    digest = hashlib.blake2b(os.fsencode(home), digest_size=6).hexdigest()
    root = temporary if temporary is not None else Path(tempfile.gettempdir())
    return root / f"sluice-{os.getuid()}-{digest}"


def prepare_directory(directory: Path) -> None:
    """Create the directory of sockets for its owner only.

    Raises:
        OperatorError: `bad_run_directory` if another user owns it, or it is a link.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = directory.lstat().st_uid
    if directory.is_symlink() or owner != os.getuid():
        sentence = (
            f"{directory} belongs to user {owner}, not to the user that runs Sluice, so Sluice "
            "can't create its sockets there."
        )
        raise OperatorError("bad_run_directory", sentence, "Remove it, or give SLUICE_HOME a shorter path.")
