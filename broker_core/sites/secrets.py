"""What links prove themselves with: a file on the broker's machine, so that no policy, revision or database has it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from broker_core.errors import OperatorError

MOST_BYTES: Final = 64 * 1024


class Secret(NamedTuple):
    """What a logon takes: a token, or a user with a password, or nothing."""

    token: str | None = None
    user: str | None = None
    password: str | None = None


def secret_of(path: Path | None, destination: str) -> Secret:
    """Out of the file that SLUICE_LINK_SECRETS names: lines `DESTINATION TOKEN`, or `DESTINATION USER PASSWORD`.

    Nothing for a destination without a line, which may show a certificate. Read anew for each logon. Raises OperatorError no_link_secret.
    """
    if path is None:
        return Secret()
    try:
        status = path.stat()
        if status.st_mode & 0o007 or status.st_size > MOST_BYTES:
            raise ValueError("others may read it, or it is too long")
        lines = [line.split(maxsplit=2) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as problem:
        raise OperatorError(
            "no_link_secret",
            f"The file of the links' secrets {path} can't be used: {problem}.",
            "Name a file that its owner alone may read, with `DESTINATION TOKEN` on each line (SLUICE_LINK_SECRETS).",
        ) from None
    for words in lines:
        if words[:1] == [destination]:
            return (
                Secret(user=words[1], password=words[2])
                if len(words) == 3
                else Secret("".join(words[1:]) or None)
            )
    return Secret()
