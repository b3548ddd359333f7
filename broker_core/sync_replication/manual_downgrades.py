"""`<instance>.downgrades`: members and links that an operator downgraded.

They are stored by name, a link by the name of its client. A manual downgrade holds until an operator
upgrades the peer, also across restarts.

    {"version": 1, "crc": 1234, "downgraded": {"c": {"by": "ada", "at": 1764000000000000000}}}

`crc` is the CRC32C of the object as stored; `at` is ns UTC. An unreadable or damaged file is logged and
counts as empty. Acknowledgements then wait for all peers that the policy lists, and the policy downgrades
slow ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec
import structlog

from broker_core.checksum import crc32c
from broker_core.errors import JournalError
from broker_core.journal.files import FileSystem, remove_temporaries, replace_durably

VERSION: Final = 1
log = structlog.get_logger("sluice.confirming")


class ManualDowngrade(msgspec.Struct, frozen=True):
    """A manual downgrade: the operator, and the time in ns UTC."""

    by: str
    at: int


class _DowngradeFile(msgspec.Struct):
    version: int
    crc: int
    downgraded: msgspec.Raw


class ManualDowngradeStore:
    """Manual downgrades of one broker. The constructor raises OSError if the directory can't be read."""

    def __init__(self, directory: Path, instance: str, files: FileSystem) -> None:
        self._path = directory / f"{instance}.downgrades"
        self._files = files
        self._lock = asyncio.Lock()
        remove_temporaries(files, self._path)
        self.downgrades: dict[str, ManualDowngrade] = _read(self._path)

    async def record(self, name: str, downgrade: ManualDowngrade | None, listed: Collection[str]) -> None:
        """Store a downgrade of `name`, or with None remove it; it is on disk when this returns.

        Of the other downgrades only those of peers in `listed` are retained. Raises JournalError not_kept.
        """
        async with self._lock:
            remaining = {
                peer: stored for peer, stored in self.downgrades.items() if peer in listed and peer != name
            }
            if downgrade is not None:
                remaining[name] = downgrade
            if remaining == self.downgrades:
                return
            encoded = msgspec.json.encode(remaining)
            content = msgspec.json.encode(_DowngradeFile(VERSION, crc32c(encoded), msgspec.Raw(encoded)))
            try:
                await asyncio.to_thread(replace_durably, self._files, self._path, content)
            except OSError as problem:
                raise JournalError(
                    "not_kept",
                    "The file of downgraded members and destinations can't be written: "
                    f"{problem.strerror or problem}.",
                    "Make room on the journal's disk.",
                ) from None
            self.downgrades = remaining


def _read(path: Path) -> dict[str, ManualDowngrade]:
    """Read the file; return no downgrades if it is missing, or damaged, which is logged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        found = msgspec.json.decode(content, type=_DowngradeFile)
        if found.version != VERSION:
            raise ValueError(f"version {found.version}")
        if found.crc != crc32c(found.downgraded):
            raise ValueError("its checksum doesn't fit")
        return msgspec.json.decode(found.downgraded, type=dict[str, ManualDowngrade])
    except ValueError as problem:
        log.error(
            "downgrades_unreadable",
            file=str(path),
            why=str(problem),
            fix="Downgrade again who isn't to be waited for.",
        )
        return {}
