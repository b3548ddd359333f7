"""`<instance>.clients.ack`: the publisher sessions of each client, so that opening doesn't have to scan the
whole log.

    +--------------------------------------------------------------------------+
    | 0 magic "SLUICEA1" | 8 crc u32 (CRC32C of the rest) | 12 length u32       |
    | 16 upto u64 | 24 JSON object, client name -> [[session, last number], …]  |
    +--------------------------------------------------------------------------+

Of each name the session that holds it comes first (see publishers.py); a number alone is one of session 0.
The file is true for the log up to sequence `upto`; recovery reads what follows from the segments. Written
whole, when a segment is sealed, at closing, and at opening when it had to be rebuilt. Lost or damaged, it
is rebuilt by a scan.

The names stand in the order in which they published last, and the newest 131,072 are kept: a publisher that
has been silent while so many others published is forgotten, and its repeats would be taken for new.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec

from broker_core.checksum import crc32c
from broker_core.journal.files import FileSystem, replace_durably
from broker_core.journal.publishers import Publishers, SessionNumber, Sessions

MAGIC = b"SLUICEA1"
_HEAD = struct.Struct("<8sIIQ")


def publisher_sequences_path(directory: Path, instance: str) -> Path:
    """Where an instance's file is."""
    return directory / f"{instance}.clients.ack"


def write_publisher_sequences(
    files: FileSystem, path: Path, upto: int, publishers: Mapping[str, Sessions]
) -> None:
    """Put the file in place durably."""
    text = msgspec.json.encode(dict(publishers))
    tail = struct.pack("<Q", upto) + text
    replace_durably(files, path, _HEAD.pack(MAGIC, crc32c(tail), len(text), upto) + text)


def read_publisher_sequences(path: Path) -> tuple[int, Publishers] | None:
    """(upto, publishers), or None if the file is missing or damaged."""
    try:
        raw = path.read_bytes()
        magic, crc, length, upto = _HEAD.unpack_from(raw)
        if magic != MAGIC or len(raw) != _HEAD.size + length or crc32c(raw[16:]) != crc:
            return None
        found = msgspec.json.decode(raw[_HEAD.size :], type=dict[str, Sessions | int])
        return upto, Publishers(
            {name: ((SessionNumber(0, one),) if isinstance(one, int) else one) for name, one in found.items()}
        )
    except (OSError, struct.error, msgspec.DecodeError):
        return None
