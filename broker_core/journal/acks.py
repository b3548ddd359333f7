"""`<instance>.clients.ack`: the last publisher sequence of each client, so that opening needn't scan the whole log.

    +--------------------------------------------------------------------------+
    | 0 magic "SLUICEA1" | 8 crc u32 (CRC32C of the rest) | 12 length u32       |
    | 16 upto u64 | 24 JSON object, client name -> last publisher sequence      |
    +--------------------------------------------------------------------------+

It is true for the log up to sequence `upto`; recovery reads what follows from the segments. Written whole, when a
segment is sealed, at closing, and at opening when it had to be rebuilt. Lost or damaged, it is rebuilt by a scan.

The names stand in the order in which they published last, and the newest 131,072 are kept: a publisher that has
been silent while so many others published is forgotten, and its repeats would be taken for new.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import orjson

from broker_core.checksum import crc32c
from broker_core.journal.files import Files, replace_durably

MAGIC = b"SLUICEA1"
MAX_PUBLISHERS = 131_072
"""Some 20 MB of memory, and 5 MB written when a segment is sealed."""
_HEAD = struct.Struct("<8sIIQ")


class Publishers(dict[str, int]):
    """The last publisher sequence of each client, the newest at the end; the longest silent go beyond the limit."""

    def note(self, name: str, sequence: int) -> None:
        """A publisher's newest sequence."""
        self.pop(name, None)
        self[name] = sequence
        if len(self) > MAX_PUBLISHERS:
            del self[next(iter(self))]


def acks_path(directory: Path, instance: str) -> Path:
    """Where an instance's file is."""
    return directory / f"{instance}.clients.ack"


def write_acks(files: Files, path: Path, upto: int, publishers: Mapping[str, int]) -> None:
    """Put the file in place durably."""
    text = orjson.dumps(dict(publishers))
    tail = struct.pack("<Q", upto) + text
    replace_durably(files, path, _HEAD.pack(MAGIC, crc32c(tail), len(text), upto) + text)


def read_acks(path: Path) -> tuple[int, dict[str, int]] | None:
    """(upto, publishers), or None if the file is missing or damaged."""
    try:
        raw = path.read_bytes()
        magic, crc, length, upto = _HEAD.unpack_from(raw)
        if magic != MAGIC or len(raw) != _HEAD.size + length or crc32c(raw[16:]) != crc:
            return None
        return upto, orjson.loads(raw[_HEAD.size :])
    except (OSError, struct.error, orjson.JSONDecodeError):
        return None
