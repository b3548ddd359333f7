"""Binary format of the record batch: identical bytes on the wire, in the journal, in a spool and in Spark.

All integers are little-endian. A batch is a 96-byte header and a payload whose length is a multiple of 8:

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

* stored_length is the length of the payload as stored; raw_length is its length before compression. They are
  equal while codec is 0, the only codec.
* CRCs are CRC32C (Castagnoli, RFC 3720 appendix B.4). payload_crc covers the payload; header_crc covers the
  header with its own field zero. The broker stamps the header and never changes the payload, so the
  publisher's checksum protects a record from its application to Spark.
* Dictionary entry 0 is the publisher's client name; entries 1.. are topics. A row's topic is a dictionary
  index.
* Record i has sequence first_sequence + i, or sequences[i]. Its publisher sequence is
  first_publisher_sequence + publisher_sequence_delta. first_sequence 0 means "not journaled";
  first_publisher_sequence 0 means that the publisher does not number its messages.
* session is the publisher session that counts the publisher sequences: sequences are only compared within one
  name and session. Its highest bit says that the client was authenticated; 0 is a publisher without
  sequences.
* origin and publisher are hash64() of the instance's and the client's name. accepted_at is in nanoseconds
  UTC.
* log_position is the position of the batch in the log that a group of brokers shares
  (group/state_machine.py); 0: none.
* A row's flags are zero. A record's headers are bytes that the publisher and its subscribers agree on; the
  broker only carries them.
* flags: EXPLICIT_SEQUENCES; CONFLATED and CONFLATION_OVER, only in the copy of a batch that is delivered to
  one client, never in a journal; CLAIM, only in a group's log, in the first batch that a connection appends
  there.
* A reader rejects a batch with an unknown version or codec; it never guesses.

Reason for this format: in CPython the cost is per object touched. One struct call reads the header, however
many records there are. A reader of many small batches joins their row tables and decodes them together.

This module also encodes and decodes dictionaries, with a cache, because the same dictionaries recur.
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
"""Bytes of one row's sequence, if sequences are explicit."""
ROW_DTYPE = np.dtype(
    [("headers", "<u4"), ("body", "<u4"), ("topic", "<u2"), ("flags", "<u2"), ("delta", "<u4")]
)
EXPLICIT_SEQUENCES = 1
CONFLATED = 2
"""Mark of a backlog from which a policy removed messages that later ones of the same key replace."""
CONFLATION_OVER = 4
"""Mark of the first delivery after such a backlog. From it on, every message is delivered."""
MARKS = CONFLATED | CONFLATION_OVER
CLAIM = 8
"""Flag of a connection's first numbered batch in a group's log: its session claims the client name."""
UNCERTAIN_TIME = 16
"""Flag of a batch that was accepted while the machine's clock was out of step."""
KNOWN_FLAGS = EXPLICIT_SEQUENCES | MARKS | CLAIM | UNCERTAIN_TIME
PROVEN = 1 << 31
"""Bit of a session that says that the client was authenticated. Only brokers set it."""
MAX_SESSION = PROVEN - 1
"""Largest id that a client may give a publisher session."""
MARK_WORDS = {0: "", CONFLATED: "conflated", CONFLATION_OVER: "conflation_over"}
"""Name of each mark, as messages show it."""
MAX_RECORDS = 65_536
"""Maximum records in one batch. Limits the memory that one header can make a reader allocate."""
MAX_BATCH_BYTES = 16 * 1024 * 1024
"""Maximum bytes of one batch, with its header."""
MAX_DICTIONARY = 1_024
"""Maximum entries of a dictionary: the publisher's name and the topics."""
MAX_SMALL_ROWS = 64
"""Maximum rows that struct reads and writes; numpy handles more. Measured: both cost the same at 64 rows."""

MAX_DELTA = 2**32 - 1
"""Maximum difference between the publisher sequences of a batch: a row has 32 bits for it."""
PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
"""Zero bytes that pad a length to a multiple of 8, by the last three bits of the length."""
_U32 = struct.Struct("<I")
_HEADER_CRC_AT = 28
_ZERO_CRC = b"\0\0\0\0"


class BatchHeader(NamedTuple):
    """Fields of the header, in the order of the format."""

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
    """Decoded record. Only code that handles single records creates these."""

    topic: str
    body: bytes
    headers: bytes
    sequence: int
    publisher_sequence: int


@lru_cache(maxsize=65_536)
def hash64(name: str) -> int:
    """Return the 64-bit hash of a name in headers (BLAKE2b with an 8-byte digest, little-endian)."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def bad_batch_error(sentence: str, position: int) -> ClientError:
    """Return the error for an invalid batch. `position` is the byte in the batch."""
    return ClientError(
        "bad_batch",
        f"{sentence} (at byte {position} of the batch)",
        "Build batches with the client library.",
        position=position,
    )


def header_crc(header: Buffer) -> int:
    """Return the checksum of a 96-byte header, computed with its own field zero."""
    plain = bytearray(header)
    plain[_HEADER_CRC_AT : _HEADER_CRC_AT + 4] = _ZERO_CRC
    return crc32c(plain)


def update_header_crc(buf: bytearray) -> None:
    """Update the checksum of the header at the beginning of `buf`, in place."""
    buf[_HEADER_CRC_AT : _HEADER_CRC_AT + 4] = _ZERO_CRC
    _U32.pack_into(buf, _HEADER_CRC_AT, crc32c(buf[:HEADER_SIZE]))


@lru_cache(maxsize=MAX_SMALL_ROWS + 1)
def pack_small_row_table(count: int) -> struct.Struct:
    """Return the struct of a row table with `count` rows, as flat fields."""
    return struct.Struct("<" + "IIHHI" * count)


@lru_cache(maxsize=8_192)
def encode_dictionary(publisher: str, topics: tuple[str, ...]) -> bytes:
    """Return the bytes of a dictionary, padded to a multiple of 8."""
    parts = [struct.pack("<H", len(topics) + 1)]
    for entry in (publisher, *topics):
        raw = entry.encode()
        parts += (struct.pack("<H", len(raw)), raw)
    encoded = b"".join(parts)
    return encoded + PADDING[len(encoded) & 7]


@lru_cache(maxsize=8_192)
def decode_dictionary(raw: bytes) -> tuple[str, ...]:
    """Return the publisher's name and the topics of an encoded dictionary.

    Raises:
        ClientError: `bad_batch`.
    """
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
