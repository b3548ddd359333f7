"""THE FORMAT: the record batch, the same bytes on the wire, in the journal, in a spool and in Spark.

Little-endian. A batch is a 96-byte header and a payload whose length is a multiple of 8:

    +--------------------------------------------------------------------------------+
    | 0  magic "SLB1"  | 4 version u8 | 5 codec u8 | 6 flags u16 | 8 count u32         |
    | 12 dictionary_length u32 | 16 stored_length u32 | 20 raw_length u32              |
    | 24 payload_crc u32 | 28 header_crc u32 | 32 origin u64 | 40 epoch u32 | 44 session u32 |
    | 48 first_sequence u64 | 56 accepted_at i64 | 64 publisher u64                    |
    | 72 first_publisher_sequence u64 | 80 headers_length u32 | 84 bodies_length u32   |
    | 88 log_position u64                                                              |
    +---------------------------------------------------------------- payload ---------+
    | dictionary: u16 entries, then u16 length + UTF-8 each; zero-padded to 8          |
    | rows: count x 16 bytes                                                           |
    | sequences: count x u64, only with flag EXPLICIT_SEQUENCES                        |
    | the headers of all records | the bodies of all records | zero padding to 8       |
    +--------------------------------------------------------------------------------+

    row: headers_length u32, body_length u32, topic u16, flags u16, publisher_sequence_delta u32

* stored_length is the payload as it stands; raw_length is the payload before compression. They are equal while
  codec is 0, the only codec there is.
* CRCs are CRC32C (Castagnoli, RFC 3720 appendix B.4). payload_crc covers the payload; header_crc covers the
  header with its own field zero. The broker stamps the header and never touches the payload, so the checksum the
  publisher computed protects a record from its application to Spark.
* Dictionary entry 0 is the publisher's client name; entries 1.. are topics. A row's topic is a dictionary index.
* Record i has sequence first_sequence + i, or sequences[i]. Its publisher sequence is
  first_publisher_sequence + publisher_sequence_delta. first_sequence 0 means "not journaled";
  first_publisher_sequence 0 means that the publisher doesn't number its messages.
* session names the publisher session that counts the publisher sequences: numbers are compared within a name and
  a session alone. Its highest bit says that the client had proven who it is; 0 is a publisher without numbers.
* origin and publisher are hash64() of the instance's and the client's name. accepted_at is nanoseconds UTC.
* log_position says where the batch stands in the log that a group of brokers shares (group/state_machine.py); 0 where there is none.
* A row's flags are zero. A record's headers are bytes that the publisher and its subscribers agree on; the broker carries them.
* flags: EXPLICIT_SEQUENCES, and of deliveries alone CONFLATED and CONFLATION_OVER, which stand in a copy that is made for one
  client and never in a journal. CLAIM stands in a group's log alone: the first batch that a connection
  appends there.
* A reader that meets another version or codec refuses the batch; it never guesses.

Why this shape: in CPython the cost is per object touched. One struct call reads the header whatever the number of
records, and a reader of many small batches joins their row tables and decodes them at once.

A batch's dictionary: the publisher's name and the topics, as bytes and as text. The same ones come again and again.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from broker_core.checksum import crc32c
from broker_core.errors import ClientError

Buffer = bytes | bytearray | memoryview
Rows = npt.NDArray[np.int64]

MAGIC = b"SLB1"
VERSION = 1
HEADER = struct.Struct("<4sBBHIIIIIIQIIQqQQIIQ")
HEADER_SIZE = HEADER.size
ROW = struct.Struct("<IIHHI")
ROW_SIZE = ROW.size
SEQUENCE_SIZE = 8
"""Of a row's sequence, where sequences are explicit."""
ROW_DTYPE = np.dtype(
    [("headers", "<u4"), ("body", "<u4"), ("topic", "<u2"), ("flags", "<u2"), ("delta", "<u4")]
)
EXPLICIT_SEQUENCES = 1
CONFLATED = 2
"""What is left of a backlog from which policy left out messages: later ones of the same key stand for them."""
CONFLATION_OVER = 4
"""The first delivery behind such a backlog: from it on everything comes again."""
MARKS = CONFLATED | CONFLATION_OVER
CLAIM = 8
"""The first numbered batch of a connection in a group's log: with it the publisher session takes its name."""
KNOWN_FLAGS = EXPLICIT_SEQUENCES | MARKS | CLAIM
PROVEN = 1 << 31
"""The bit of a session that says that its client had proven who it is. Brokers set it."""
MAX_SESSION = PROVEN - 1
"""The largest id that a client may give a publisher session."""
MARK_WORDS = {0: "", CONFLATED: "conflated", CONFLATION_OVER: "conflation_over"}
"""The marks as messages show them."""
MAX_RECORDS = 65_536
"""Records in one batch; a bound on what one header can make a reader allocate."""
MAX_BATCH_BYTES = 16 * 1024 * 1024
"""One batch with its header, in bytes."""
MAX_DICTIONARY = 1_024
"""Entries of a dictionary: the publisher's name, and topics."""
FEW_ROWS = 64
"""Up to here a row table is handled by struct, above by numpy; measured, building costs the same at 64 rows."""

MAX_DELTA = 2**32 - 1
"""Between the numbers of a batch's records, which a row has 32 bits for."""
PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
"""What a length needs to be a multiple of 8, by its last three bits."""
_U32 = struct.Struct("<I")
_HEADER_CRC_AT = 28
_ZERO_CRC = b"\0\0\0\0"


class BatchHeader(NamedTuple):
    """The header's fields, in their order in the file."""

    magic: bytes
    version: int
    codec: int
    flags: int
    count: int  # type: ignore[assignment]  # the field's name in the format; tuple.count isn't used
    dictionary_length: int
    stored_length: int
    raw_length: int
    payload_crc: int
    header_crc: int
    origin: int
    epoch: int
    session: int
    first_sequence: int
    accepted_at: int
    publisher: int
    first_publisher_sequence: int
    headers_length: int
    bodies_length: int
    log_position: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return HEADER_SIZE + self.stored_length


class Record(NamedTuple):
    """One record, decoded. Made only where somebody looks at single records."""

    topic: str
    body: bytes
    headers: bytes
    sequence: int
    publisher_sequence: int


@lru_cache(maxsize=65_536)
def hash64(name: str) -> int:
    """A name's 64-bit identity in headers (BLAKE2b with a digest of 8 bytes, little-endian)."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def bad_batch_error(sentence: str, position: int) -> ClientError:
    return ClientError(
        "bad_batch",
        f"{sentence} (at byte {position} of the batch)",
        "Build batches with the client library.",
        position=position,
    )


def header_crc(header: Buffer) -> int:
    """The checksum of a header's 96 bytes, which covers all of them but itself."""
    plain = bytearray(header)
    plain[_HEADER_CRC_AT : _HEADER_CRC_AT + 4] = _ZERO_CRC
    return crc32c(plain)


def update_header_crc(buf: bytearray) -> None:
    """Renew the checksum of the header that `buf` begins with, in place."""
    buf[_HEADER_CRC_AT : _HEADER_CRC_AT + 4] = _ZERO_CRC
    _U32.pack_into(buf, _HEADER_CRC_AT, crc32c(buf[:HEADER_SIZE]))


@lru_cache(maxsize=FEW_ROWS + 1)
def pack_small_row_table(count: int) -> struct.Struct:
    """The row table of a few records, whose fields come one after the other."""
    return struct.Struct("<" + "IIHHI" * count)


@lru_cache(maxsize=8_192)
def encode_dictionary(publisher: str, topics: tuple[str, ...]) -> bytes:
    """The bytes, padded to a multiple of 8."""
    parts = [struct.pack("<H", len(topics) + 1)]
    for entry in (publisher, *topics):
        raw = entry.encode()
        parts += (struct.pack("<H", len(raw)), raw)
    whole = b"".join(parts)
    return whole + PADDING[len(whole) & 7]


@lru_cache(maxsize=8_192)
def decode_dictionary(raw: bytes) -> tuple[str, ...]:
    """The publisher's name and the topics. ClientError bad_batch."""
    entries: list[str] = []
    try:
        (number,) = struct.unpack_from("<H", raw)
        if not 2 <= number <= MAX_DICTIONARY:
            raise bad_batch_error(
                f"a dictionary has 2 to {MAX_DICTIONARY} entries, not {number}", HEADER_SIZE
            )
        at = 2
        for _ in range(number):
            (length,) = struct.unpack_from("<H", raw, at)
            text = raw[at + 2 : at + 2 + length]
            if len(text) != length:
                raise bad_batch_error("a dictionary entry is cut off", HEADER_SIZE + at)
            entries.append(text.decode())
            at += 2 + length
    except (struct.error, UnicodeDecodeError):
        raise bad_batch_error("the dictionary can't be read", HEADER_SIZE) from None
    if at + (-at & 7) != len(raw):
        raise bad_batch_error("the dictionary's length is wrong", 12)
    return tuple(entries)
