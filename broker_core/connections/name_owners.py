"""Owners of client names, stored in `<instance>.owners`.

    +--------------------------------------------------------------------------+
    | 0 magic "SLUICEO1" | 8 crc u32 (CRC32C of the rest) | 12 length u32       |
    | 16 JSON object, client name -> user                                       |
    +--------------------------------------------------------------------------+

A name belongs to the first authenticated user who logged on with it. Its publisher sequences, durable
subscriptions and replays belong to that user, too. The ownership ends when the access policy no longer has
the user, or no longer lets the user use the name. A name that no authenticated user has used has no owner.

The file is written completely, at most once a second. A name claimed in the second before a crash may be
claimed by another user. It stores the 131,072 names that logged on last. The broker refuses a damaged file
and does not guess.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import msgspec

from broker_core.checksum import crc32c
from broker_core.errors import OperatorError
from broker_core.journal.files import FileSystem, remove_temporaries, replace_durably

MAGIC = b"SLUICEO1"
USER_PREFIX = "user:"
"""Prefix of names under which state of a user is stored that belongs to no client."""
MAX_NAMES = 131_072
"""Maximum number of names: as many as remembered publishers."""
_HEAD = struct.Struct("<8sII")


class ClientNameOwners:
    """Client name owners of one instance.

    Raises:
        OperatorError: bad_owners, when the file exists and can't be read.
        OSError: the file system failed.
    """

    def __init__(self, path: Path, files: FileSystem | None = None) -> None:
        self._path = path
        self._files = files or FileSystem()
        remove_temporaries(self._files, path)
        self._users = _load(path)
        self.is_changed = False
        """Whether the owners changed since the last `encode`."""
        self.on_owner_changed: Callable[[str, str], None] | None = None
        """Called when a name gets another owner, or with "" none."""

    def __len__(self) -> int:
        return len(self._users)

    def owner_of(self, name: str) -> str | None:
        """Return the user who owns a name; None: no user does."""
        return self._users.get(name)

    def user_of(self, name: str) -> str:
        """Return the owner of state that is stored under a name; "" when there is none."""
        if name.startswith(USER_PREFIX):
            return name.removeprefix(USER_PREFIX)
        return self._users.get(name, "")

    def claim(self, name: str, user: str) -> None:
        """Make an authenticated user the owner of a name.

        The caller has checked that no other user owns it.
        """
        before = self._users.pop(name, None)
        self._users[name] = user
        if before == user:
            return
        self.is_changed = True
        self._change_owner(name, user)
        if len(self._users) > MAX_NAMES:
            forgotten = next(iter(self._users))
            del self._users[forgotten]
            self._change_owner(forgotten, "")

    def _change_owner(self, name: str, user: str) -> None:
        if self.on_owner_changed is not None:
            self.on_owner_changed(name, user)

    def encode(self) -> bytes:
        """Return the content of the file, and clear `is_changed`."""
        self.is_changed = False
        text = msgspec.json.encode(self._users)
        return _HEAD.pack(MAGIC, crc32c(text), len(text)) + text

    def write(self, content: bytes) -> None:
        """Write the file durably. May be called in any thread.

        Raises:
            OSError: the file system failed.
        """
        replace_durably(self._files, self._path, content)


def _load(path: Path) -> dict[str, str]:
    """Read the file. Return the owners by name; {} if there is no file."""
    try:
        raw = path.read_bytes()
        magic, crc, length = _HEAD.unpack_from(raw)
        text = raw[_HEAD.size :]
        if magic != MAGIC or len(text) != length or crc32c(text) != crc:
            raise ValueError("its checksum doesn't fit")
        return msgspec.json.decode(text, type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (ValueError, struct.error) as problem:
        raise OperatorError(
            "bad_owners",
            f"{path} can't be read: {problem}.",
            "Restore the file, or move it away: then each name belongs to the next user that logs "
            "on with it.",
        ) from problem
