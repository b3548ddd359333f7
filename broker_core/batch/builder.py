"""Batches made, and stamped in place by the broker."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from broker_core.batch.layout import (
    EXPLICIT_SEQUENCES,
    FEW_ROWS,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAX_BATCH_BYTES,
    MAX_DICTIONARY,
    MAX_RECORDS,
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
    """A batch of records of one topic without headers, numbered one after the other; the fast path of publishing."""
    count = len(bodies)
    if count <= FEW_ROWS:
        fields = [0, 0, 1, 0, 0] * count
        fields[1::5] = map(len, bodies)
        fields[4::5] = range(count)
        rows = pack_small_row_table(count).pack(*fields)
    else:
        rows = _table(bodies, 1).tobytes()
    return _assemble(publisher, (topic,), rows, b"", bodies, first_publisher_sequence, session=session)


def build_batch(
    publisher: str,
    topics: Sequence[str],
    bodies: Sequence[bytes],
    headers: Sequence[bytes] | None = None,
    first_publisher_sequence: int = 0,
    sequences: Sequence[int] = (),
    session: int = 0,
) -> bytearray:
    """A whole batch, checksummed and not yet stamped: record i goes to topics[i] with bodies[i] and headers[i].

    With `sequences`, ascending and one for each record, these stand in the batch; stamp it with the first of them.
    Raises ClientError bad_batch when the numbers differ or a limit is passed.
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
    if (
        count and topics.count(topics[0]) == count
    ):  # almost always, and found out without a look at each in Python
        numbers[topics[0]] = 1
    else:
        indexes = [numbers.setdefault(topic, len(numbers) + 1) for topic in topics]
    if len(numbers) >= MAX_DICTIONARY:
        raise bad_batch_error(f"a batch holds {MAX_DICTIONARY - 1} topics at most", 12)
    table = _table(bodies, indexes)
    joined = b""
    if headers is not None:
        table["headers"] = list(map(len, headers))
        joined = b"".join(headers)
    rows = table.tobytes() + np.array(sequences, "<u8").tobytes()
    flags = EXPLICIT_SEQUENCES if sequences else 0
    return _assemble(
        publisher, tuple(numbers), rows, joined, bodies, first_publisher_sequence, flags, session
    )


def _table(bodies: Sequence[bytes], topics: int | list[int]) -> npt.NDArray[Any]:
    table = np.zeros(len(bodies), ROW_DTYPE)
    table["body"] = list(map(len, bodies))
    table["topic"] = topics
    table["delta"] = np.arange(len(bodies), dtype=np.uint32)
    return table


def _assemble(
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
    """A whole batch of tables and texts that are joined already. ClientError bad_batch where a limit is passed."""
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
    whole = bytearray(header)
    update_header_crc(whole)
    whole += payload
    return whole


def stamp_header(buf: bytearray, *, origin: int, epoch: int, first_sequence: int, accepted_at: int) -> None:
    """Write what the broker assigns into the header, in place, and renew its checksum. The payload isn't touched."""
    _ORIGIN.pack_into(buf, 32, origin, epoch)
    _SEQUENCE.pack_into(buf, 48, first_sequence, accepted_at)
    update_header_crc(buf)


def write_flags(buf: bytearray, flags: int) -> None:
    """Write the header's flags, in place. Before `stamp`, which renews the checksum."""
    _FLAGS.pack_into(buf, 6, flags)


def write_session(buf: bytearray, session: int) -> None:
    """Write the header's publisher session, in place. Before `stamp`, which renews the checksum."""
    _SESSION.pack_into(buf, 44, session)


def renumber(buf: bytearray, session: int, first_publisher_sequence: int) -> None:
    """Give a batch another publisher session and its records other numbers, in place, and renew the
    header's checksum."""
    write_session(buf, session)
    _U64.pack_into(buf, 72, first_publisher_sequence)
    update_header_crc(buf)


def write_log_position(buf: bytearray, log_position: int) -> None:
    """Write where a batch stands in the log of its group, in place. Before `stamp`, which renews the checksum."""
    _U64.pack_into(buf, 88, log_position)
