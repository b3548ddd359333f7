"""Building of batches, and stamping them in place."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from broker_core.batch.layout import (
    EXPLICIT_SEQUENCES,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAX_BATCH_BYTES,
    MAX_DICTIONARY,
    MAX_RECORDS,
    MAX_SMALL_ROWS,
    PADDING,
    ROW_DTYPE,
    VERSION,
    bad_batch_error,
    encode_dictionary,
    hash64,
    pack_small_row_table,
    update_header_crc,
)
from broker_core.checksum import crc32c

_ORIGIN = struct.Struct("<QI")
_SEQUENCE = struct.Struct("<Qq")
_FLAGS = struct.Struct("<H")
_SESSION = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def build_single_topic_batch(
    publisher: str, topic: str, bodies: Sequence[bytes], first_publisher_sequence: int = 0, session: int = 0
) -> bytearray:
    """Build a batch of records of one topic without headers. This is the fast path of publishing.

    Records are numbered consecutively.

    Args:
        publisher: Name of the publishing client.
        topic: Topic of all records.
        bodies: Body of each record.
        first_publisher_sequence: Publisher sequence of the first record; 0: the records are not numbered.
        session: Publisher session that counts the sequences.
    """
    count = len(bodies)
    if count <= MAX_SMALL_ROWS:
        fields = [0, 0, 1, 0, 0] * count
        fields[1::5] = map(len, bodies)
        fields[4::5] = range(count)
        rows = pack_small_row_table(count).pack(*fields)
    else:
        rows = _make_row_table(bodies, 1).tobytes()
    return _assemble_batch(publisher, (topic,), rows, b"", bodies, first_publisher_sequence, session=session)


def build_batch(
    publisher: str,
    topics: Sequence[str],
    bodies: Sequence[bytes],
    headers: Sequence[bytes] | None = None,
    first_publisher_sequence: int = 0,
    sequences: Sequence[int] = (),
    session: int = 0,
) -> bytearray:
    """Build a batch with its checksums. It is not stamped yet.

    Args:
        publisher: Name of the publishing client.
        topics: Topic of each record.
        bodies: Body of each record.
        headers: Header bytes of each record. None: no headers.
        first_publisher_sequence: Publisher sequence of the first record; 0: the records are not numbered.
        sequences: Explicit sequence of each record, in ascending order, or (). Stamp the batch with the first
            one.
        session: Publisher session that counts the publisher sequences.

    Raises:
        ClientError: `bad_batch`, if the lengths differ or a limit is exceeded.
    """
    count = len(bodies)
    if (
        len(topics) != count
        or (headers is not None and len(headers) != count)
        or len(sequences) not in (0, count)
    ):
        raise bad_batch_error("topics, bodies, headers and sequences must be of one length", 8)
    numbers: dict[str, int] = {}
    indexes: int | list[int] = 1
    # Nearly always true, and count() compares in C.
    if count and topics.count(topics[0]) == count:
        numbers[topics[0]] = 1
    else:
        indexes = [numbers.setdefault(topic, len(numbers) + 1) for topic in topics]
    if len(numbers) >= MAX_DICTIONARY:
        raise bad_batch_error(f"a batch holds {MAX_DICTIONARY - 1} topics at most", 12)
    table = _make_row_table(bodies, indexes)
    encoded_headers = b""
    if headers is not None:
        table["headers"] = list(map(len, headers))
        encoded_headers = b"".join(headers)
    rows = table.tobytes() + np.array(sequences, "<u8").tobytes()
    flags = EXPLICIT_SEQUENCES if sequences else 0
    return _assemble_batch(
        publisher, tuple(numbers), rows, encoded_headers, bodies, first_publisher_sequence, flags, session
    )


def _make_row_table(bodies: Sequence[bytes], topics: int | list[int]) -> npt.NDArray[Any]:
    """Return a row table of records without headers, numbered consecutively."""
    table = np.zeros(len(bodies), ROW_DTYPE)
    table["body"] = list(map(len, bodies))
    table["topic"] = topics
    table["delta"] = np.arange(len(bodies), dtype=np.uint32)
    return table


def _assemble_batch(
    publisher: str,
    topics: tuple[str, ...],
    rows: bytes,
    headers: bytes,
    bodies: Sequence[bytes],
    first: int,
    flags: int = 0,
    session: int = 0,
) -> bytearray:
    return build_from_tables(
        publisher, topics, len(bodies), rows, headers, b"".join(bodies), first, flags, session
    )


def build_from_tables(
    publisher: str,
    topics: tuple[str, ...],
    count: int,
    rows: bytes,
    headers: bytes,
    texts: bytes,
    first: int,
    flags: int = 0,
    session: int = 0,
) -> bytearray:
    """Build a batch from its dictionary, its row table and joined texts.

    Args:
        publisher: Name of the publishing client.
        topics: Topics of the dictionary.
        count: Number of records.
        rows: Row table, with explicit sequences if the flags say so.
        headers: Joined header bytes of all records.
        texts: Joined bodies of all records.
        first: Publisher sequence of the first record.
        flags: Flags of the header.
        session: Publisher session that counts the publisher sequences.

    Raises:
        ClientError: `bad_batch`, if a limit is exceeded.
    """
    dictionary = encode_dictionary(publisher, topics)
    if not 0 < count <= MAX_RECORDS:
        raise bad_batch_error(f"a batch holds 1 to {MAX_RECORDS} records, not {count}", 8)
    length = len(dictionary) + len(rows) + len(headers) + len(texts)
    padding = PADDING[length & 7]
    length += len(padding)
    if HEADER_SIZE + length > MAX_BATCH_BYTES:
        raise bad_batch_error(f"a batch is {MAX_BATCH_BYTES} bytes at most, not {HEADER_SIZE + length}", 16)
    payload = b"".join((dictionary, rows, headers, texts, padding))
    header = HEADER.pack(
        MAGIC, VERSION, 0, flags, count, len(dictionary), length, length, crc32c(payload), 0,
        0, 0, session, 0, 0, hash64(publisher), first, len(headers), len(texts), 0,
    )  # fmt: skip
    encoded = bytearray(header)
    update_header_crc(encoded)
    encoded += payload
    return encoded


def stamp_header(buf: bytearray, *, origin: int, epoch: int, first_sequence: int, accepted_at: int) -> None:
    """Write the fields that the broker assigns into the header, in place, and update its checksum.

    The payload is not touched.
    """
    _ORIGIN.pack_into(buf, 32, origin, epoch)
    _SEQUENCE.pack_into(buf, 48, first_sequence, accepted_at)
    update_header_crc(buf)


def write_flags(buf: bytearray, flags: int) -> None:
    """Write the header's flags in place. Call it before `stamp_header`, which updates the checksum."""
    _FLAGS.pack_into(buf, 6, flags)


def write_session(buf: bytearray, session: int) -> None:
    """Write the header's publisher session in place.

    Call it before `stamp_header`, which updates the checksum.
    """
    _SESSION.pack_into(buf, 44, session)


def renumber(buf: bytearray, session: int, first_publisher_sequence: int) -> None:
    """Change the publisher session and sequences of a batch in place, and update the header's checksum."""
    write_session(buf, session)
    _U64.pack_into(buf, 72, first_publisher_sequence)
    update_header_crc(buf)


def write_log_position(buf: bytearray, log_position: int) -> None:
    """Write the position of a batch in its group's log, in place. Call it before `stamp_header`."""
    _U64.pack_into(buf, 88, log_position)
