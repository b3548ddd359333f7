"""Format of `.index.gz`, a sealed segment's sidecar: gzip (RFC 1952) of JSON, with binary summaries.

    {"version":1, "instance":…, "segment":first sequence, "epoch":…, "header_crc":…,
     "end":content's end offset, "records":…, "last_sequence":…, "first_at":ns, "last_at":ns,
     "entries":[[sequence, offset, at], …],
     "holes":[[offset, length, first_sequence, last_sequence, why], …]}

The gzip header has three extra fields (RFC 1952, 2.3.1.1). The first has the numbers, so that opening a log
reads 96 bytes of each sidecar. The second has the entries' positions in columns, so that a seek inflates and
parses nothing. The third has the offset of the topics, which are a second member of the file (format:
topic_index.py). Little-endian:

    +------------------------------------------------------------------------------------+
    | 0 1f 8b 08 04 | 4 mtime u32 = 0 | 8 xfl u8 = 0 | 9 os u8 = 255 | 10 xlen u16         |
    | 12 "SI" | 14 field length u16 = 80 | 16 crc u32 | 20 holes u32 | 24 epoch u32        |
    | 28 header_crc u32 | 32 origin u64 | 40 segment u64 | 48 end u64 | 56 records u64            |
    | 64 last_sequence u64 | 72 first_at i64 | 80 last_at i64 | 88 length u64               |
    | 96 "SP" | 98 field length u16 = 4 + 24 n | 100 crc u32                                |
    | 104 n sequences u64 | n offsets u64 | n ats i64                                       |
    | "ST" | field length u16 = 12 | crc u32 | second member's offset u64                     |
    | deflate data ... | crc32 u32 | raw length u32 | second member ...                        |
    +------------------------------------------------------------------------------------+

Each crc is the CRC32C of the bytes that follow it in its field. `length` is the whole file's, which reveals a
truncated file. An extra field has at most 64 KiB: of more than 2,700 entries only every second, third, … has
a position. A reader ignores unknown fields of the document, and any item after the three numbers of an entry.
"""

from __future__ import annotations

import struct
from array import array
from pathlib import Path
from typing import Any, cast

import orjson
from isal import isal_zlib

from broker_core.batch import hash64
from broker_core.checksum import crc32c
from broker_core.journal.segment_index import IndexEntries, MissingRange, SegmentIndex
from broker_core.journal.topic_index import TopicIndex

VERSION = 1
_PREFIX = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff"
_PREFIX_PLAIN = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
"""Header of a gzip member without extra fields."""
_HEAD = struct.Struct("<10sH2sHI")
_SUMMARY = struct.Struct("<IIIQQQQQqqQ")
_TAIL = struct.Struct("<II")
_OFFSET = struct.Struct("<Q")
SUMMARY_END = _HEAD.size + _SUMMARY.size
"""Bytes to read of a sidecar for its summary."""
_POSITIONS = struct.Struct("<2sHI")
_TOPICS = struct.Struct("<2sHI8s")
MAX_POSITIONS = 2_700
"""Maximum number of entries with a position in the extra field."""
MAX_TOPICS_BYTES = 64 * 1024 * 1024
"""Maximum buffer allocated for the topics on the basis of the length in the file; longer topics are read all
the same."""
_FIGURES = ("epoch", "end", "records", "last_sequence", "first_at", "last_at")
"""Fields that the document and SegmentIndex have under the same names."""
_GZIP = 31
"""wbits of the whole gzip format, checksum included."""
_INFLATE_ERRORS = (cast("type[Exception]", isal_zlib.error), OverflowError, ValueError, EOFError)


def encode_sidecar(index: SegmentIndex) -> bytes:
    """Return the bytes of the sidecar. The index must have its entries and topics."""
    document, positions = _deflated(_document(index)), _encode_positions(index)
    known = index.topic_index
    assert known is not None, "an index that is written has its entries"
    topics = _PREFIX_PLAIN + _deflated(known.encode())
    topics_offset = SUMMARY_END + len(positions) + _TOPICS.size + len(document)
    file_length = topics_offset + len(topics)
    at = _OFFSET.pack(topics_offset)
    summary = _SUMMARY.pack(
        len(index.holes),
        index.epoch,
        index.header_crc,
        hash64(index.instance),
        index.first_sequence,
        index.end,
        index.records,
        index.last_sequence,
        index.first_at,
        index.last_at,
        file_length,
    )
    extra = 4 + 4 + _SUMMARY.size + len(positions) + _TOPICS.size
    head = _HEAD.pack(_PREFIX, extra, b"SI", 4 + _SUMMARY.size, crc32c(summary))
    return head + summary + positions + _TOPICS.pack(b"ST", 4 + len(at), crc32c(at), at) + document + topics


def _deflated(raw: bytes) -> bytes:
    """Return a gzip member without its header."""
    packer = isal_zlib.compressobj(1, isal_zlib.DEFLATED, -15)
    return packer.compress(raw) + packer.flush() + _TAIL.pack(isal_zlib.crc32(raw), len(raw))


def _encode_positions(index: SegmentIndex) -> bytes:
    columns = b"".join(column.tobytes() for column in index.sample_positions(MAX_POSITIONS))
    return _POSITIONS.pack(b"SP", 4 + len(columns), crc32c(columns)) + columns


def _document(index: SegmentIndex) -> bytes:
    return orjson.dumps(
        {
            "version": VERSION,
            "instance": index.instance,
            "segment": index.first_sequence,
            "header_crc": index.header_crc,
            **{name: getattr(index, name) for name in _FIGURES},
            "entries": index.entries(),
            "holes": [hole[1:] for hole in index.holes],
        }
    )


def decode_sidecar(raw: bytes) -> SegmentIndex:
    """Parse a sidecar from its JSON document. Raises ValueError when it isn't one."""
    try:
        topics_offset = _topics_at(raw)
        if not topics_offset:
            raise ValueError("nothing says where its topics begin")
        document = orjson.loads(isal_zlib.decompress(raw[:topics_offset], _GZIP))
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']} isn't known")
        made = SegmentIndex(document["instance"], document["segment"], document["epoch"])
        made.header_crc = document["header_crc"]
        for name in _FIGURES:
            setattr(made, name, document[name])
        made.holes = tuple(MissingRange(made.first_sequence, *hole) for hole in document["holes"])
        made.set_entries(_entries(document, _topics(raw, topics_offset)))
    except (*_INFLATE_ERRORS, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not an index: {error}") from None
    return made


def _entries(document: dict[str, Any], topics: TopicIndex) -> IndexEntries:
    columns = list(zip(*document["entries"], strict=True)) or [(), (), ()]
    sequences, offsets, ats = columns[:3]
    if topics.range_count != len(sequences):
        raise ValueError("the topics are of other stretches")
    made = IndexEntries(sealed=topics)
    made.sequences, made.offsets, made.ats = array("Q", sequences), array("Q", offsets), array("q", ats)
    return made


def _topics_at(raw: bytes) -> int:
    """Return the offset of the second member; 0 if there is none."""
    if len(raw) < SUMMARY_END + _POSITIONS.size or raw[:10] != _PREFIX:
        return 0
    at = SUMMARY_END + 4 + _POSITIONS.unpack_from(raw, SUMMARY_END)[1]
    if len(raw) < at + _TOPICS.size:
        return 0
    tag, size, crc, offset = _TOPICS.unpack_from(raw, at)
    return (
        int(_OFFSET.unpack(offset)[0]) if (tag, size, crc) == (b"ST", 4 + _OFFSET.size, crc32c(offset)) else 0
    )


def _topics(raw: bytes, topics_offset: int) -> TopicIndex:
    member = raw[topics_offset:]
    # With a buffer one byte larger than the content isal doesn't double it.
    length = min(int.from_bytes(member[-4:], "little"), MAX_TOPICS_BYTES)
    return TopicIndex.decode(isal_zlib.decompress(member, _GZIP, length + 1))


def load_sidecar(path: Path, instance: str, first_sequence: int) -> SegmentIndex | None:
    """Load a sidecar; return None if it is missing, damaged or of another segment."""
    try:
        raw = path.read_bytes()
        found = _read_columns(raw, instance, first_sequence) or decode_sidecar(raw)
    except (OSError, ValueError):
        return None
    return found if (found.instance, found.first_sequence) == (instance, first_sequence) else None


def _read_columns(raw: bytes, instance: str, first_sequence: int) -> SegmentIndex | None:
    """Load the index from the extra fields, without the document; None if an entry has no position there.

    Raises ValueError when the topics can't be read.
    """
    found, positions = _read_summary(raw, len(raw), instance, first_sequence), _read_positions(raw)
    topics_offset = _topics_at(raw)
    if found is None or positions is None or not topics_offset:
        return None
    try:
        topics = _topics(raw, topics_offset)
    except _INFLATE_ERRORS as error:
        raise ValueError(f"not an index: {error}") from None
    if topics.range_count != len(positions.sequences):
        return None
    positions.positions_only, positions.sealed = False, topics
    found.set_entries(positions)
    return found


def load_summary(path: Path, instance: str, first_sequence: int) -> SegmentIndex | None:
    """Load a sidecar without its entries, by one read of 96 bytes; else as `load_sidecar`.

    A sidecar with missing ranges is loaded completely. Returns None as `load_sidecar` does.
    """
    found = _read_summary(*_front(path, SUMMARY_END), instance, first_sequence)
    return load_sidecar(path, instance, first_sequence) if found is None else found


def load_positions(path: Path, instance: str, first_sequence: int) -> SegmentIndex | None:
    """Load a sidecar with its entries' positions, without inflating or parsing; else as `load_sidecar`."""
    raw, length = _front(path, 2**16 + _HEAD.size)
    found, entries = _read_summary(raw, length, instance, first_sequence), _read_positions(raw)
    if found is None or entries is None:
        return load_sidecar(path, instance, first_sequence)
    found.set_entries(entries)
    return found


def _front(path: Path, size: int) -> tuple[bytes, int]:
    """Return the first `size` bytes of a file, and its length; (b"", 0) when it can't be read."""
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(size), file.seek(0, 2)
    except OSError:
        return b"", 0


def _read_positions(raw: bytes) -> IndexEntries | None:
    """Return the positions in the extra field, or None if it is invalid."""
    start = SUMMARY_END + _POSITIONS.size
    if len(raw) < start:
        return None
    tag, size, crc = _POSITIONS.unpack_from(raw, SUMMARY_END)
    columns = raw[start : SUMMARY_END + 4 + size]
    if tag != b"SP" or len(columns) != size - 4 or len(columns) % 24 or crc32c(columns) != crc:
        return None
    made, third = IndexEntries(positions_only=True), len(columns) // 3
    made.sequences.frombytes(columns[:third])
    made.offsets.frombytes(columns[third : 2 * third])
    made.ats.frombytes(columns[2 * third :])
    return made


def _read_summary(raw: bytes, length: int, instance: str, first_sequence: int) -> SegmentIndex | None:
    """Return the index from the summary, without entries.

    None if it is invalid, belongs to another segment, was truncated, or the segment has missing ranges.
    """
    if len(raw) < SUMMARY_END:
        return None
    prefix, _, tag, size, crc = _HEAD.unpack_from(raw)
    if (prefix, tag, size) != (_PREFIX, b"SI", 4 + _SUMMARY.size) or crc32c(
        raw[_HEAD.size : SUMMARY_END]
    ) != crc:
        return None
    holes, epoch, header_crc, origin, segment, *numbers, file_length = _SUMMARY.unpack_from(raw, _HEAD.size)
    if holes or (origin, segment, file_length) != (hash64(instance), first_sequence, length):
        return None
    made = SegmentIndex(instance, first_sequence, epoch)
    made.header_crc = header_crc
    made.end, made.records, made.last_sequence, made.first_at, made.last_at = numbers
    made.set_entries(None)
    return made
