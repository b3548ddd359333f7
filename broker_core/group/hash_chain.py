"""The chain: a hash over everything that was applied, in order. Members whose logs differ have different ones from there on.

Each batch adds its header as it is stamped: sequence, moment, publisher and place, and the checksum of its payload, which was
proved when the batch arrived. It begins with the log's identity.

`<instance>.chain` has one that was true once, so that a member which starts needn't read its whole journal:

    | 0 magic "SLUICEH1" | 8 crc u32 (CRC32C of what follows) | 12 zero u32 | 16 sequence u64 | 24 hash, 16 bytes |
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
"""Entries of which the hash is still known, to compare with members that are behind: some 40 s at full speed."""
DIGEST = 16
_HEAD = struct.Struct("<8sII")
_REST = struct.Struct("<Q16s")
_MAGIC = b"SLUICEH1"
_STEP = 8 * 1024 * 1024


class HashChain:
    """The hash behind `sequence`. `value` is None when it can't be known: the log's beginning is gone, and so is the file."""

    def __init__(self, sequence: int, value: bytes | None) -> None:
        self.sequence = sequence
        self.value = value
        self._recent: OrderedDict[int, tuple[int, bytes]] = OrderedDict()

    def add(self, batch: Batch) -> None:
        """A batch was applied."""
        self.sequence = batch.last_sequence
        if self.value is not None:
            self.value = blake2b(self.value + bytes(batch.buf[:HEADER_SIZE]), digest_size=DIGEST).digest()

    def mark_entry_applied(self, entry: int) -> None:
        """An entry of the log was applied whole."""
        if self.value is not None:
            self._recent[entry] = self.sequence, self.value
            if len(self._recent) > REMEMBERED:
                self._recent.popitem(last=False)

    def state_after(self, entry: int) -> tuple[int, bytes] | None:
        """Sequence and hash behind an entry, while they are remembered."""
        return self._recent.get(entry)

    @property
    def newest_entry(self) -> int:
        """The newest entry of which the hash is known; 0: none."""
        return next(reversed(self._recent), 0)

    @property
    def checkpoint(self) -> tuple[int, bytes | None]:
        """Where it is, for `back_to`."""
        return self.sequence, self.value

    def rollback(self, mark: tuple[int, bytes | None]) -> None:
        """What was added since isn't in the journal."""
        self.sequence, self.value = mark
        while self._recent and next(reversed(self._recent.values()))[0] > self.sequence:
            self._recent.popitem()


def chain_path(directory: Path, instance: str) -> Path:
    """Where an instance's file is."""
    return directory / f"{instance}.chain"


def write_chain(files: FileSystem, path: Path, sequence: int, value: bytes) -> None:
    """Put the file in place durably. OSError."""
    rest = _REST.pack(sequence, value)
    replace_durably(files, path, _HEAD.pack(_MAGIC, crc32c(rest), 0) + rest)


def read_chain(path: Path) -> HashChain | None:
    """What the file says; None when there is none, or it is damaged."""
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
    """The chain at a journal's end: from its file, or from the log's beginning if that is still there. Reads what lies between."""
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
