"""THE FORMAT of `.index.gz`, a sealed segment's sidecar: gzip (RFC 1952) of one JSON document, with a summary in front.

    {"version":1, "instance":…, "segment":first sequence, "epoch":…, "end":content's end offset, "records":…,
     "last_sequence":…, "first_at":ns, "last_at":ns, "topics":[…]|null,
     "entries":[[sequence, offset, at, [topic numbers]|null], …],
     "holes":[[offset, length, first_sequence, last_sequence, why], …]}

The gzip header has an extra field (RFC 1952, 2.3.1.1) with the numbers, so that opening a log reads 96 bytes of each
sidecar and inflates none. Little-endian:

    +------------------------------------------------------------------------------------+
    | 0 1f 8b 08 04 | 4 mtime u32 = 0 | 8 xfl u8 = 0 | 9 os u8 = 255 | 10 xlen u16 = 84   |
    | 12 "SI" | 14 field length u16 = 80 | 16 crc u32 | 20 holes u32 | 24 epoch u32        |
    | 28 zero u32 | 32 origin u64 | 40 segment u64 | 48 end u64 | 56 records u64            |
    | 64 last_sequence u64 | 72 first_at i64 | 80 last_at i64 | 88 length u64               |
    | 96 deflate data ... | crc32 u32 | raw length u32                                       |
    +------------------------------------------------------------------------------------+

crc is the CRC32C of bytes 20 to 95; length is the whole file's, so that one that was cut short is noticed. A sidecar
without the field, as earlier versions wrote it, is read whole.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import orjson
from crc32c import crc32c
from isal import isal_zlib

from broker_core.batch import hash64
from broker_core.journal.index import Entries, Hole, SegmentIndex

VERSION = 1
_PREFIX = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff"
_HEAD = struct.Struct("<10sH2sHI")
_SUMMARY = struct.Struct("<IIIQQQQQqqQ")
_TAIL = struct.Struct("<II")
SUMMARY_END = _HEAD.size + _SUMMARY.size


def encode(index: SegmentIndex) -> bytes:
    """The sidecar's bytes."""
    raw = _document(index)
    packer = isal_zlib.compressobj(1, isal_zlib.DEFLATED, -15)
    data = packer.compress(raw) + packer.flush()
    summary = _SUMMARY.pack(
        len(index.holes),
        index.epoch,
        0,
        hash64(index.instance),
        index.first_sequence,
        index.end,
        index.records,
        index.last_sequence,
        index.first_at,
        index.last_at,
        SUMMARY_END + len(data) + _TAIL.size,
    )
    head = _HEAD.pack(_PREFIX, 4 + 4 + _SUMMARY.size, b"SI", 4 + _SUMMARY.size, crc32c(summary))
    return head + summary + data + _TAIL.pack(isal_zlib.crc32(raw), len(raw))


def _document(index: SegmentIndex) -> bytes:
    entries = index.entries()
    topics = index.topics
    document: dict[str, Any] = {
        "version": VERSION,
        "instance": index.instance,
        "segment": index.first_sequence,
        "epoch": index.epoch,
        "end": index.end,
        "records": index.records,
        "last_sequence": index.last_sequence,
        "first_at": index.first_at,
        "last_at": index.last_at,
        "topics": None if topics is None else list(topics),
        "entries": entries,
        "holes": [hole[1:] for hole in index.holes],
    }
    return orjson.dumps(document)


def decode(raw: bytes) -> SegmentIndex:
    """A sidecar read back; ValueError when it isn't one."""
    try:
        document = orjson.loads(gzip.decompress(raw))
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']} isn't known")
        made = SegmentIndex(document["instance"], document["segment"], document["epoch"])
        made.end, made.records = document["end"], document["records"]
        made.last_sequence = document["last_sequence"]
        made.first_at, made.last_at = document["first_at"], document["last_at"]
        made.holes = tuple(Hole(made.first_sequence, *hole) for hole in document["holes"])
        made.set_entries(_entries(document))
    except (OSError, EOFError, KeyError, TypeError, IndexError, OverflowError, zlib.error) as error:
        raise ValueError(f"not an index: {error}") from None
    return made


def _entries(document: dict[str, Any]) -> Entries:
    made, topics = Entries(), document["topics"]
    made.numbers = None if topics is None else {topic: number for number, topic in enumerate(topics)}
    for sequence, offset, at, numbers in document["entries"]:
        made.sequences.append(sequence)
        made.offsets.append(offset)
        made.ats.append(at)
        made.topics.append(numbers)
    return made


def load(path: Path, instance: str, first_sequence: int) -> SegmentIndex | None:
    """The sidecar at `path` if it is whole and belongs to this segment, else None."""
    try:
        found = decode(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if (found.instance, found.first_sequence) == (instance, first_sequence) else None


def load_summary(path: Path, instance: str, first_sequence: int) -> SegmentIndex | None:
    """As `load`, without the entries where that can be: one read of 96 bytes. Holes are always there."""
    try:
        with path.open("rb", buffering=0) as file:
            raw, length = file.read(SUMMARY_END), file.seek(0, 2)
    except OSError:
        return None
    found = _read_summary(raw, length, instance, first_sequence)
    return load(path, instance, first_sequence) if found is None else found


def _read_summary(raw: bytes, length: int, instance: str, first_sequence: int) -> SegmentIndex | None:
    if len(raw) < SUMMARY_END:
        return None
    prefix, _, tag, size, crc = _HEAD.unpack_from(raw)
    if (prefix, tag, size) != (_PREFIX, b"SI", 4 + _SUMMARY.size) or crc32c(raw[_HEAD.size :]) != crc:
        return None
    holes, epoch, _, origin, segment, *numbers, whole = _SUMMARY.unpack_from(raw, _HEAD.size)
    if holes or (origin, segment, whole) != (hash64(instance), first_sequence, length):
        return None
    made = SegmentIndex(instance, first_sequence, epoch)
    made.end, made.records, made.last_sequence, made.first_at, made.last_at = numbers
    made.set_entries(None)
    return made
