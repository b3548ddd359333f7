"""File `<instance>.clients.ack`: the publisher sessions of each name, so that opening need not scan the log.

    +--------------------------------------------------------------------------+
    | 0 magic "SLUICEA1" | 8 crc u32 (CRC32C of the rest) | 12 length u32       |
    | 16 upto u64 | 24 JSON object, client name -> [[session, last number], …]  |
    +--------------------------------------------------------------------------+

The session that holds a name comes first (see publishers.py); a number without a session belongs to session
0. The file describes the log up to sequence `upto`; recovery reads the rest from the segments. The whole file
is written when a segment is sealed, at closing, and at opening when it had to be rebuilt. A lost or damaged
file is rebuilt by a scan.

Names are in the order of their last publication, and the newest 131,072 are stored. A publisher that was
silent while so many others published is forgotten, and its repeats would count as new.
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
    """Return the path of an instance's file."""
    return directory / f"{instance}.clients.ack"


def write_publisher_sequences(
    files: FileSystem, path: Path, upto: int, publishers: Mapping[str, Sessions]
) -> None:
    """Replace the file durably."""
    text = msgspec.json.encode(dict(publishers))
    tail = struct.pack("<Q", upto) + text
    replace_durably(files, path, _HEAD.pack(MAGIC, crc32c(tail), len(text), upto) + text)


def read_publisher_sequences(path: Path) -> tuple[int, Publishers] | None:
    """Return (upto, publishers), or None if the file is missing or damaged."""
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
