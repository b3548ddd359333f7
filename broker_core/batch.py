"""THE FORMAT: the record batch, the same bytes on the wire, in the journal, in a spool and in Spark.

Little-endian. A batch is a 96-byte header and a payload whose length is a multiple of 8:

    +--------------------------------------------------------------------------------+
    | 0  magic "SLB1"  | 4 version u8 | 5 codec u8 | 6 flags u16 | 8 count u32         |
    | 12 dictionary_length u32 | 16 stored_length u32 | 20 raw_length u32              |
    | 24 payload_crc u32 | 28 header_crc u32 | 32 origin u64 | 40 epoch u32 | 44 zero u32 |
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
* origin and publisher are hash64() of the instance's and the client's name. accepted_at is nanoseconds UTC.
* log_position says where the batch stands in the log that a group of brokers shares (group/order.py); 0 where there is none.
* A row's flags are zero. A record's headers are bytes that the publisher and its subscribers agree on; the broker carries them.
* flags: EXPLICIT_SEQUENCES, and of deliveries alone CONFLATED and CONFLATION_OVER, which stand in a copy that is made for one
  client and never in a journal.
* A reader that meets another version or codec refuses the batch; it never guesses.

Why this shape: in CPython the cost is per object touched. One struct call reads the header whatever the number of
records, and a reader of many small batches joins their row tables and decodes them at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from io import BytesIO
from operator import lt
from typing import Any, NamedTuple

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
KNOWN_FLAGS = EXPLICIT_SEQUENCES | MARKS
MARK_WORDS = {0: "", CONFLATED: "conflated", CONFLATION_OVER: "conflation_over"}
"""The marks as messages show them."""
MAX_RECORDS = 65_536
"""Records in one batch; a bound on what one header can make a reader allocate."""
MAX_BATCH_BYTES = 16 * 1024 * 1024
"""One batch with its header, in bytes."""
MAX_DICTIONARY = 1_024

_MOST_DELTA = 2**32 - 1
"""Between the numbers of a batch's records, which a row has 32 bits for."""
_STAMP = struct.Struct("<QIIQq")  # origin, epoch, zero, first_sequence, accepted_at: bytes 32 to 64
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
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
    zero: int
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


def _bad(sentence: str, position: int) -> ClientError:
    return ClientError(
        "bad_batch",
        f"{sentence} (at byte {position} of the batch)",
        "Build batches with the client library.",
        position=position,
    )


# ---------------------------------------------------------------------------------------------------- building


FEW_ROWS = 64
"""Up to here a row table is handled by struct, above by numpy; measured, building costs the same at 64 rows."""


@lru_cache(maxsize=FEW_ROWS + 1)
def _few_rows(count: int) -> struct.Struct:
    return struct.Struct("<" + "IIHHI" * count)


@lru_cache(maxsize=8_192)
def _dictionary(publisher: str, topics: tuple[str, ...]) -> bytes:
    parts = [struct.pack("<H", len(topics) + 1)]
    for entry in (publisher, *topics):
        raw = entry.encode()
        parts += (struct.pack("<H", len(raw)), raw)
    whole = b"".join(parts)
    return whole + _PADDING[len(whole) & 7]


def build_one_topic(
    publisher: str, topic: str, bodies: Sequence[bytes], first_publisher_sequence: int = 0
) -> bytearray:
    """A batch of records of one topic without headers, numbered one after the other; the fast path of publishing."""
    count = len(bodies)
    if count <= FEW_ROWS:
        fields = [0, 0, 1, 0, 0] * count
        fields[1::5] = map(len, bodies)
        fields[4::5] = range(count)
        rows = _few_rows(count).pack(*fields)
    else:
        rows = _table(bodies, 1).tobytes()
    return _assemble(publisher, (topic,), rows, b"", bodies, first_publisher_sequence)


def build(
    publisher: str,
    topics: Sequence[str],
    bodies: Sequence[bytes],
    headers: Sequence[bytes] | None = None,
    first_publisher_sequence: int = 0,
    sequences: Sequence[int] = (),
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
        raise _bad("topics, bodies, headers and sequences must be of one length", 8)
    numbers: dict[str, int] = {}
    indexes: int | list[int] = 1
    if (
        count and topics.count(topics[0]) == count
    ):  # almost always, and found out without a look at each in Python
        numbers[topics[0]] = 1
    else:
        indexes = [numbers.setdefault(topic, len(numbers) + 1) for topic in topics]
    if len(numbers) >= MAX_DICTIONARY:
        raise _bad(f"a batch holds {MAX_DICTIONARY - 1} topics at most", 12)
    table = _table(bodies, indexes)
    joined = b""
    if headers is not None:
        table["headers"] = list(map(len, headers))
        joined = b"".join(headers)
    rows = table.tobytes() + np.array(sequences, "<u8").tobytes()
    flags = EXPLICIT_SEQUENCES if sequences else 0
    return _assemble(publisher, tuple(numbers), rows, joined, bodies, first_publisher_sequence, flags)


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
) -> bytearray:
    return _joined(publisher, topics, len(bodies), rows, headers, b"".join(bodies), first, flags)


def _joined(
    publisher: str,
    topics: tuple[str, ...],
    count: int,
    rows: bytes,
    headers: bytes,
    texts: bytes,
    first: int,
    flags: int = 0,
) -> bytearray:
    dictionary = _dictionary(publisher, topics)
    if not 0 < count <= MAX_RECORDS:
        raise _bad(f"a batch holds 1 to {MAX_RECORDS} records, not {count}", 8)
    length = len(dictionary) + len(rows) + len(headers) + len(texts)
    padding = _PADDING[length & 7]
    length += len(padding)
    if HEADER_SIZE + length > MAX_BATCH_BYTES:
        raise _bad(f"a batch is {MAX_BATCH_BYTES} bytes at most, not {HEADER_SIZE + length}", 16)
    payload = b"".join((dictionary, rows, headers, texts, padding))
    header = HEADER.pack(
        MAGIC, VERSION, 0, flags, count, len(dictionary), length, length, crc32c(payload), 0,
        0, 0, 0, 0, 0, hash64(publisher), first, len(headers), len(texts), 0,
    )  # fmt: skip
    whole = bytearray(header)
    _U32.pack_into(whole, 28, crc32c(header))
    whole += payload
    return whole


def stamp(buf: bytearray, *, origin: int, epoch: int, first_sequence: int, accepted_at: int) -> None:
    """Write what the broker assigns into the header, in place, and renew its checksum. The payload isn't touched."""
    _STAMP.pack_into(buf, 32, origin, epoch, 0, first_sequence, accepted_at)
    buf[28:32] = _ZERO_CRC
    _U32.pack_into(buf, 28, crc32c(buf[:HEADER_SIZE]))


def locate(buf: bytearray, log_position: int) -> None:
    """Write where a batch stands in the log of its group, in place. Before `stamp`, which renews the checksum."""
    _U64.pack_into(buf, 88, log_position)


# ---------------------------------------------------------------------------------------------------- reading


def peek(buf: Buffer, offset: int = 0) -> BatchHeader:
    """The header at an offset, checked by magic, version, checksum and lengths; ClientError bad_batch otherwise.

    The payload may not be there yet: see `BatchHeader.size`.
    """
    if len(buf) - offset < HEADER_SIZE:
        raise _bad(f"a batch header has {HEADER_SIZE} bytes, here are {len(buf) - offset}", offset)
    header = BatchHeader._make(HEADER.unpack_from(buf, offset))
    if header.magic != MAGIC:
        raise _bad("a batch starts with SLB1", offset)
    if header.version != VERSION or header.codec != 0 or header.flags & ~KNOWN_FLAGS:
        raise _bad(
            f"version {header.version}, codec {header.codec}, flags {header.flags:#x} aren't known",
            offset + 4,
        )
    plain = bytearray(buf[offset : offset + HEADER_SIZE])
    plain[28:32] = _ZERO_CRC
    if crc32c(plain) != header.header_crc:
        raise _bad("the header's checksum doesn't fit", offset + 28)
    tables = header.count * (ROW_SIZE + (SEQUENCE_SIZE if header.flags & EXPLICIT_SEQUENCES else 0))
    used = header.dictionary_length + tables + header.headers_length + header.bodies_length
    if (
        not 0 < header.count <= MAX_RECORDS
        or header.stored_length != header.raw_length
        or header.stored_length != used + (-used & 7)
        or header.dictionary_length & 7
        or header.size > MAX_BATCH_BYTES
    ):
        raise _bad("the header's lengths contradict each other", offset + 8)
    return header


class Batch:
    """One record batch: its bytes, the header's fields, and everything else decoded only when asked for.

    `verify` checks the payload: its checksum, the dictionary, that the row table's lengths add up. Bytes from a
    peer or a file are always verified; only what this process has verified before is not.
    """

    __slots__ = ("_bodies", "_dictionary", "_ends", "_rows", "buf", "header", "nbytes")

    def __init__(self, buf: Buffer, header: BatchHeader) -> None:
        self.buf = buf
        self.header = header
        self.nbytes = HEADER_SIZE + header.stored_length
        self._dictionary: tuple[str, ...] | None = None
        self._rows: npt.NDArray[Any] | None = None
        self._bodies: list[bytes] | None = None
        self._ends: dict[str, npt.NDArray[np.uint64]] | None = None

    @classmethod
    def parse(cls, buf: Buffer, *, verify: bool = True) -> Batch:
        """The batch in `buf`, which must hold exactly one. Raises ClientError bad_batch with the position."""
        header = peek(buf)
        if len(buf) != header.size:
            raise _bad(f"the batch has {header.size} bytes by its header, here are {len(buf)}", 16)
        batch = cls(buf, header)
        if verify:
            batch._verify()
        return batch

    def stamp(self, *, origin: int, epoch: int, first_sequence: int, accepted_at: int) -> None:
        """Write what the broker assigns; the buffer must be a bytearray that nobody else reads yet."""
        assert isinstance(self.buf, bytearray)
        stamp(self.buf, origin=origin, epoch=epoch, first_sequence=first_sequence, accepted_at=accepted_at)
        self.header = BatchHeader._make(HEADER.unpack_from(self.buf))

    def _verify(self) -> None:
        header, view = self.header, memoryview(self.buf)
        if crc32c(view[HEADER_SIZE:]) != header.payload_crc:
            raise _bad("the payload's checksum doesn't fit", 24)
        entries = len(self._read_dictionary())
        if header.count <= FEW_ROWS:
            fields = self._few()
            few_topics, deltas = fields[2::5], fields[4::5]
            wrong = (
                sum(fields[0::5]) != header.headers_length
                or sum(fields[1::5]) != header.bodies_length
                or min(few_topics) < 1
                or max(few_topics) >= entries
                or any(fields[3::5])
                or (header.first_publisher_sequence != 0 and not all(map(lt, deltas, deltas[1:])))
            )
        else:
            rows = self.rows
            topics = rows["topic"]
            # Summed as u64: the u32 lengths of 65,536 rows could wrap and hide a lie.
            wrong = (
                int(rows["headers"].sum(dtype=np.uint64)) != header.headers_length
                or int(rows["body"].sum(dtype=np.uint64)) != header.bodies_length
                or int(topics.min()) < 1
                or int(topics.max()) >= entries
                or bool(rows["flags"].any())
                or bool((rows["delta"][1:] <= rows["delta"][:-1]).any() and header.first_publisher_sequence)
            )
        if wrong:
            raise _bad("the row table contradicts the header", HEADER_SIZE + header.dictionary_length)

    # What the broker asks of every batch.

    @property
    def count(self) -> int:
        return self.header.count

    @property
    def flags(self) -> int:
        return self.header.flags

    @property
    def mark(self) -> str:
        """What policy did to the backlog that it comes from: "conflated", "conflation_over", or "" for nothing."""
        return MARK_WORDS.get(self.header.flags & MARKS, "")

    @property
    def first_sequence(self) -> int:
        """Sequence of the first record; 0 when the batch isn't journaled."""
        return self.header.first_sequence

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; 0 when the batch isn't journaled."""
        header = self.header
        if header.first_sequence == 0:
            return 0
        return (
            int(self.sequences()[-1])
            if header.flags & EXPLICIT_SEQUENCES
            else (header.first_sequence + header.count - 1)
        )

    @property
    def accepted_at(self) -> int:
        """When the broker took it, in nanoseconds UTC."""
        return self.header.accepted_at

    @property
    def origin(self) -> int:
        return self.header.origin

    @property
    def first_publisher_sequence(self) -> int:
        return self.header.first_publisher_sequence

    @property
    def last_publisher_sequence(self) -> int:
        """The publisher's number of the last record; 0 when the publisher doesn't number."""
        header = self.header
        if header.first_publisher_sequence == 0:
            return 0
        at = HEADER_SIZE + header.dictionary_length + (header.count - 1) * ROW_SIZE
        return header.first_publisher_sequence + int(ROW.unpack_from(self.buf, at)[4])

    # The dictionary.

    def _read_dictionary(self) -> tuple[str, ...]:
        if self._dictionary is None:
            end = HEADER_SIZE + self.header.dictionary_length
            self._dictionary = _decode_dictionary(bytes(self.buf[HEADER_SIZE:end]))
        return self._dictionary

    @property
    def publisher_name(self) -> str:
        return self._read_dictionary()[0]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics the rows may name; row topic n is topics[n - 1]."""
        return self._read_dictionary()[1:]

    @property
    def single_topic(self) -> str | None:
        """The topic when the batch has just one, else None."""
        entries = self._read_dictionary()
        return entries[1] if len(entries) == 2 else None

    # The tables.

    @property
    def rows(self) -> npt.NDArray[Any]:
        """The row table as a structured array (ROW_DTYPE), without a copy."""
        if self._rows is None:
            self._rows = np.frombuffer(
                self.buf, ROW_DTYPE, self.header.count, HEADER_SIZE + self.header.dictionary_length
            )
        return self._rows

    @property
    def topic_indexes(self) -> npt.NDArray[np.uint16]:
        """For each row the dictionary index of its topic, from 1."""
        indexes: npt.NDArray[np.uint16] = self.rows["topic"]
        return indexes

    def names(self) -> list[str]:
        """The topic of each record."""
        entries = self._read_dictionary()
        return [entries[index] for index in self.topic_indexes.tolist()]

    def sequences(self) -> npt.NDArray[np.uint64]:
        """The sequence of each record."""
        header = self.header
        if header.flags & EXPLICIT_SEQUENCES:
            at = HEADER_SIZE + header.dictionary_length + header.count * ROW_SIZE
            return np.frombuffer(self.buf, np.dtype("<u8"), header.count, at)
        if header.first_sequence == 0:
            return np.zeros(header.count, np.uint64)
        return np.arange(header.first_sequence, header.first_sequence + header.count, dtype=np.uint64)

    def publisher_sequences(self) -> npt.NDArray[np.uint64]:
        """The publisher's number of each record; zeros when the publisher doesn't number."""
        first = self.header.first_publisher_sequence
        if first == 0:
            return np.zeros(self.header.count, np.uint64)
        return self.rows["delta"].astype(np.uint64) + np.uint64(first)

    def numbers(self) -> tuple[Sequence[int], Sequence[int]]:
        """`sequences` and `publisher_sequences` for who goes through them one by one."""
        header = self.header
        explicit = header.first_sequence == 0 or header.flags & EXPLICIT_SEQUENCES
        sequences = (
            self.sequences().tolist()
            if explicit
            else range(header.first_sequence, header.first_sequence + header.count)
        )
        first = header.first_publisher_sequence
        if first and header.count <= FEW_ROWS:
            return sequences, [first + delta for delta in self._few()[4::5]]
        return sequences, self.publisher_sequences().tolist()

    def _few(self) -> tuple[int, ...]:
        """The fields of the row table, one after the other, of a batch of a few records: numpy's calls cost more there."""
        return _few_rows(self.header.count).unpack_from(self.buf, HEADER_SIZE + self.header.dictionary_length)

    def _texts_at(self) -> int:
        header = self.header
        wide = ROW_SIZE + (SEQUENCE_SIZE if header.flags & EXPLICIT_SEQUENCES else 0)
        return HEADER_SIZE + header.dictionary_length + header.count * wide

    def _cut(self, start: int, lengths: Sequence[int]) -> list[bytes]:
        # A read cuts in a third of a slice's time: no slice object, and no bytecode for each.
        return list(map(BytesIO(self.buf[start : start + sum(lengths)]).read, lengths))

    def bodies(self) -> list[bytes]:
        """The body of each record; cut once and kept."""
        if self._bodies is None:
            few = self.header.count <= FEW_ROWS
            lengths = self._few()[1::5] if few else self.rows["body"].tolist()
            self._bodies = self._cut(self._texts_at() + self.header.headers_length, lengths)
        return self._bodies

    def headers(self) -> list[bytes]:
        """The header bytes of each record."""
        return self._cut(self._texts_at(), self.rows["headers"].tolist())

    def body(self, row: int) -> bytes:
        """The body of one record."""
        return self.bodies()[row]

    def records(self) -> Iterator[Record]:
        """Each record decoded."""
        columns = zip(self.names(), self.bodies(), self.headers(), *self.numbers(), strict=True)
        return map(Record._make, columns)

    def select(self, rows: Rows, *, explicit: bool = True) -> Batch:
        """A new batch of the given rows, in order, with explicit sequences; header fields are kept. Of one topic, it names no other.

        `rows` are row numbers, ascending. The new batch is checksummed anew and stands for itself. With
        `explicit=False`, for a batch that isn't stamped yet, its records get no sequences.
        """
        header = self.header
        flags = header.flags & MARKS | (EXPLICIT_SEQUENCES if explicit else 0)
        sequences = self._sequences_of(rows) if explicit else None
        joined, texts = self._texts_of(rows)
        table = self.rows[rows]
        dictionary = self._dictionary_of(table)
        tables = table.tobytes() + (sequences.tobytes() if sequences is not None else b"")
        body = dictionary + tables + joined + texts
        payload = body + _PADDING[len(body) & 7]
        made = bytearray(HEADER.pack(
            MAGIC, VERSION, 0, flags, len(rows), len(dictionary), len(payload), len(payload), crc32c(payload), 0,
            header.origin, header.epoch, 0, int(sequences[0]) if sequences is not None else 0, header.accepted_at,
            header.publisher, header.first_publisher_sequence, len(joined), len(texts), 0,
        ))  # fmt: skip
        _U32.pack_into(made, 28, crc32c(made))
        made += payload
        return Batch(made, BatchHeader._make(HEADER.unpack_from(made)))

    def _sequences_of(self, rows: Rows) -> npt.NDArray[np.uint64]:
        header = self.header
        if header.flags & EXPLICIT_SEQUENCES or not header.first_sequence:
            return self.sequences()[rows]
        sequences: npt.NDArray[np.uint64] = np.asarray(rows, np.uint64) + np.uint64(header.first_sequence)
        return sequences

    def _dictionary_of(self, table: npt.NDArray[Any]) -> bytes:
        """The dictionary of some rows. Those of one topic, as a queue's are, need none of a thousand others: their indexes are
        changed in the `table`, which is theirs."""
        header, entries = self.header, self._read_dictionary()
        indexes = table["topic"]
        if len(entries) > 2 and (len(indexes) == 1 or (indexes == indexes[0]).all()):
            topic, indexes[:] = entries[indexes[0]], 1
            return _dictionary(entries[0], (topic,))
        return bytes(self.buf[HEADER_SIZE : HEADER_SIZE + header.dictionary_length])

    def republished(self, publisher: str, rows: Rows) -> bytearray:
        """Some rows as a batch that `publisher` has yet to publish: what they have as sequences here are its publisher sequences.

        `rows` are row numbers, ascending, of records that have sequences. The batch is checksummed and not stamped. Raises ClientError
        bad_batch where it would be too large, or its numbers too far apart.
        """
        sequences = self.sequences()[rows]
        first = int(sequences[0])
        joined, texts = self._texts_of(rows)
        table = self.rows[rows]
        if int(sequences[-1]) - first > _MOST_DELTA:
            raise _bad(f"a batch's numbers are at most {_MOST_DELTA} apart", 72)
        table["delta"] = sequences - np.uint64(first)
        return _joined(publisher, self.topics, len(rows), table.tobytes(), joined, texts, first)

    def marked(self, mark: int) -> Batch:
        """A copy with that mark (CONFLATED or CONFLATION_OVER) and no other; the payload is the same."""
        header = bytearray(self.buf[:HEADER_SIZE])
        _U16.pack_into(header, 6, self.header.flags & ~MARKS | mark)
        header[28:32] = _ZERO_CRC
        _U32.pack_into(header, 28, crc32c(header))
        made = header + self.buf[HEADER_SIZE:]
        return Batch(made, BatchHeader._make(HEADER.unpack_from(made)))

    def _texts_of(self, rows: Rows) -> tuple[bytes, bytes]:
        """The header bytes and the bodies of some rows, each joined."""
        at = self._texts_at()
        if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):
            # One stretch, as when a batch is cut to be sent in parts: nothing is done per record.
            stretch = slice(int(rows[0]), int(rows[-1]) + 1)
            return self._stretch("headers", stretch, at), self._stretch(
                "body", stretch, at + self.header.headers_length
            )
        bodies, heads = self.bodies(), self.headers() if self.header.headers_length else None
        chosen = rows.tolist()
        return b"".join([heads[row] for row in chosen]) if heads else b"", b"".join(
            [bodies[row] for row in chosen]
        )

    def _stretch(self, lengths: str, rows: slice, at: int) -> bytes:
        if lengths == "headers" and not self.header.headers_length:
            return b""
        if self._ends is None:
            self._ends = {}
        ends = self._ends.get(lengths)
        if ends is None:  # a batch of many topics is cut for each of them
            ends = self._ends[lengths] = np.cumsum(self.rows[lengths], dtype=np.uint64)
        start = int(ends[rows.start - 1]) if rows.start else 0
        return bytes(self.buf[at + start : at + int(ends[rows.stop - 1])])


@lru_cache(maxsize=8_192)
def _decode_dictionary(raw: bytes) -> tuple[str, ...]:
    entries: list[str] = []
    try:
        (number,) = struct.unpack_from("<H", raw)
        if not 2 <= number <= MAX_DICTIONARY:
            raise _bad(f"a dictionary has 2 to {MAX_DICTIONARY} entries, not {number}", HEADER_SIZE)
        at = 2
        for _ in range(number):
            (length,) = struct.unpack_from("<H", raw, at)
            text = raw[at + 2 : at + 2 + length]
            if len(text) != length:
                raise _bad("a dictionary entry is cut off", HEADER_SIZE + at)
            entries.append(text.decode())
            at += 2 + length
    except (struct.error, UnicodeDecodeError):
        raise _bad("the dictionary can't be read", HEADER_SIZE) from None
    if at + (-at & 7) != len(raw):
        raise _bad("the dictionary's length is wrong", 12)
    return tuple(entries)
