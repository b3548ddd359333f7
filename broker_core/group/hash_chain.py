"""Hash chain over all that was applied, in order.

Members whose journals differ have different hashes from there on.

It begins with the log's identity. Each batch adds its header as stamped: sequence, time, publisher and
position, and the checksum of its payload, which was verified when the batch arrived.

The file `<instance>.chain` stores an earlier value, so that a member doesn't read its whole journal at
start:

    | 0 magic "SLUICEH1" | 8 crc u32 (CRC32C of the rest) | 12 zero u32 | 16 sequence u64 | 24 hash, 16 B |
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from hashlib import blake2b
from pathlib import Path

from broker_core.batch import HEADER_SIZE, Batch
from broker_core.checksum import crc32c
from broker_core.journal.files import FileSystem, replace_durably
from broker_core.journal.journal import Journal

REMEMBERED = 8_192
"""Number of newest entries whose hash is retained, to compare with members that are behind.

Some 40 s at full speed.
"""
DIGEST = 16
_HEAD = struct.Struct("<8sII")
_REST = struct.Struct("<Q16s")
_MAGIC = b"SLUICEH1"
_STEP = 8 * 1024 * 1024


class HashChain:
    """Hash over all batches up to record `sequence`.

    `value` is None if the hash can't be known: the log's beginning was removed, and no file has a later
    value.
    """

    def __init__(self, sequence: int, value: bytes | None) -> None:
        self.sequence = sequence
        self.value = value
        self._recent: OrderedDict[int, tuple[int, bytes]] = OrderedDict()

    def add(self, batch: Batch) -> None:
        """Add a batch that was applied."""
        self.sequence = batch.last_sequence
        if self.value is not None:
            self.value = blake2b(self.value + bytes(batch.buf[:HEADER_SIZE]), digest_size=DIGEST).digest()

    def mark_entry_applied(self, entry: int) -> None:
        """Remember the hash behind an entry of which all batches were added."""
        if self.value is not None:
            self._recent[entry] = self.sequence, self.value
            if len(self._recent) > REMEMBERED:
                self._recent.popitem(last=False)

    def state_after(self, entry: int) -> tuple[int, bytes] | None:
        """Return sequence and hash behind an entry; None if they aren't remembered."""
        return self._recent.get(entry)

    @property
    def newest_entry(self) -> int:
        """The newest entry whose hash is known; 0: none."""
        return next(reversed(self._recent), 0)

    @property
    def checkpoint(self) -> tuple[int, bytes | None]:
        """Sequence and hash, to be passed to `rollback`."""
        return self.sequence, self.value

    def rollback(self, mark: tuple[int, bytes | None]) -> None:
        """Return to a checkpoint, because batches added since weren't written to the journal."""
        self.sequence, self.value = mark
        while self._recent and next(reversed(self._recent.values()))[0] > self.sequence:
            self._recent.popitem()


def chain_path(directory: Path, instance: str) -> Path:
    """Return the path of an instance's chain file."""
    return directory / f"{instance}.chain"


def write_chain(files: FileSystem, path: Path, sequence: int, value: bytes) -> None:
    """Write the chain file durably. Raises OSError."""
    rest = _REST.pack(sequence, value)
    replace_durably(files, path, _HEAD.pack(_MAGIC, crc32c(rest), 0) + rest)


def read_chain(path: Path) -> HashChain | None:
    """Read the chain file; None if there is none, or it is damaged."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    if len(raw) != _HEAD.size + _REST.size:
        return None
    magic, crc, _ = _HEAD.unpack_from(raw)
    if magic != _MAGIC or crc32c(raw[_HEAD.size :]) != crc:
        return None
    return HashChain(*_REST.unpack_from(raw, _HEAD.size))


def load_chain(journal: Journal) -> HashChain:
    """Return the chain at a journal's end.

    It starts from the chain file, or from the log's beginning if that still exists, and reads all batches
    behind it. The value is None if neither exists or records are missing.
    """
    last = journal.next_sequence - 1
    chain = read_chain(chain_path(journal.directory, journal.instance))
    if chain is None or chain.sequence > last or chain.sequence + 1 < journal.first_sequence:
        if journal.first_sequence != 1:
            return HashChain(last, None)
        chain = HashChain(0, journal.identity.bytes)
    while chain.sequence < last:
        found = journal.read(chain.sequence + 1, _STEP, last)
        following = found[0].first_sequence if found else last + 1
        if journal.lacks(chain.sequence + 1, following - 1):
            return HashChain(last, None)
        chain.sequence = following - 1
        for batch in found:
            chain.add(batch)
    return chain
