"""`<instance>.owners`: whose a client name is, with its publisher's numbers, its durable subscriptions and its replays.

    +--------------------------------------------------------------------------+
    | 0 magic "SLUICEO1" | 8 crc u32 (CRC32C of the rest) | 12 length u32       |
    | 16 JSON object, client name -> user                                       |
    +--------------------------------------------------------------------------+

A name belongs to the first user who has proven to be one and logged on with it, until the access policy has no such user
any more, or doesn't let that user be called so. A name that nobody proven ever used is anybody's.

Written whole, at most once a second; a name that was taken in the second before a crash may be taken anew. The names that
logged on last are kept, 131,072 of them. A damaged file is refused, not guessed.
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
"""Of names as which things are kept that belong to a user and to no client."""
MAX_NAMES = 131_072
"""As many as publishers are remembered."""
_HEAD = struct.Struct("<8sII")


class ClientNameOwners:
    """One instance's. Raises OperatorError bad_owners when the file is there and can't be read; OSError."""

    def __init__(self, path: Path, files: FileSystem | None = None) -> None:
        self._path = path
        self._files = files or FileSystem()
        remove_temporaries(self._files, path)
        self._users = _read(path)
        self.changed = False
        """Since it was last encoded."""
        self.on_moved: Callable[[str, str], None] | None = None
        """A name is another user's, or with "" nobody's."""

    def __len__(self) -> int:
        return len(self._users)

    def names_of(self, name: str) -> str | None:
        """The user whose name it is."""
        return self._users.get(name)

    def user_of(self, name: str) -> str:
        """Whose the things are that are kept by this name; "" when nobody's."""
        if name.startswith(USER_PREFIX):
            return name.removeprefix(USER_PREFIX)
        return self._users.get(name, "")

    def claim(self, name: str, user: str) -> None:
        """A user who has proven to be one logs on with a name that is its own, or nobody's."""
        before = self._users.pop(name, None)
        self._users[name] = user
        if before == user:
            return
        self.changed = True
        self._moved(name, user)
        if len(self._users) > MAX_NAMES:
            forgotten = next(iter(self._users))
            del self._users[forgotten]
            self._moved(forgotten, "")

    def _moved(self, name: str, user: str) -> None:
        if self.on_moved is not None:
            self.on_moved(name, user)

    def encode(self) -> bytes:
        """What is to be written."""
        self.changed = False
        text = msgspec.json.encode(self._users)
        return _HEAD.pack(MAGIC, crc32c(text), len(text)) + text

    def write(self, content: bytes) -> None:
        """Put it in place, in any thread. OSError."""
        replace_durably(self._files, self._path, content)


def _read(path: Path) -> dict[str, str]:
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
            "Restore it, or move it away: then each name belongs to the next user who logs on with it.",
        ) from problem
