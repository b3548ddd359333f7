"""Reading of batches: the header is validated first, and everything else is decoded on demand."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from io import BytesIO
from operator import lt
from typing import Any

import numpy as np
import numpy.typing as npt

from broker_core.batch.builder import build_from_tables, stamp_header, write_session
from broker_core.batch.layout import (
    EXPLICIT_SEQUENCES,
    HEADER,
    HEADER_SIZE,
    KNOWN_FLAGS,
    MAGIC,
    MARK_WORDS,
    MARKS,
    MAX_BATCH_BYTES,
    MAX_DELTA,
    MAX_RECORDS,
    MAX_SMALL_ROWS,
    PADDING,
    ROW,
    ROW_DTYPE,
    ROW_SIZE,
    SEQUENCE_SIZE,
    UNCERTAIN_TIME,
    VERSION,
    BatchHeader,
    Buffer,
    Record,
    Rows,
    bad_batch_error,
    decode_dictionary,
    encode_dictionary,
    header_crc,
    pack_small_row_table,
    update_header_crc,
)
from broker_core.checksum import crc32c

_FLAGS = struct.Struct("<H")


def read_batch_header(buf: Buffer, offset: int = 0) -> BatchHeader:
    """Read the header at an offset and validate its magic, version, checksum and lengths.

    The payload does not have to be in the buffer yet; see `BatchHeader.size`.

    Raises:
        ClientError: `bad_batch`, with the position.
    """
    if len(buf) - offset < HEADER_SIZE:
        raise bad_batch_error(f"a batch header has {HEADER_SIZE} bytes, here are {len(buf) - offset}", offset)
    header = BatchHeader._make(HEADER.unpack_from(buf, offset))
    if header.magic != MAGIC:
        raise bad_batch_error("a batch starts with SLB1", offset)
    if header.version != VERSION or header.codec != 0 or header.flags & ~KNOWN_FLAGS:
        raise bad_batch_error(
            f"version {header.version}, codec {header.codec}, flags {header.flags:#x} aren't known",
            offset + 4,
        )
    if header_crc(buf[offset : offset + HEADER_SIZE]) != header.header_crc:
        raise bad_batch_error("the header's checksum doesn't fit", offset + 28)
    tables = header.count * (ROW_SIZE + (SEQUENCE_SIZE if header.flags & EXPLICIT_SEQUENCES else 0))
    used = header.dictionary_length + tables + header.headers_length + header.bodies_length
    if (
        not 0 < header.count <= MAX_RECORDS
        or header.stored_length != header.raw_length
        or header.stored_length != used + (-used & 7)
        or header.dictionary_length & 7
        or header.size > MAX_BATCH_BYTES
    ):
        raise bad_batch_error("the header's lengths contradict each other", offset + 8)
    return header


class Batch:
    """Record batch: its bytes and the fields of its header. Everything else is decoded on demand."""

    __slots__ = ("_bodies", "_dictionary", "_ends", "_rows", "buf", "header", "nbytes", "session")

    def __init__(self, buf: Buffer, header: BatchHeader) -> None:
        self.buf = buf
        self.header = header
        self.session = header.session
        """Session that counts the publisher sequences, with the bit PROVEN; 0: no sequences.

        A broker may assign another session; `stamp` writes it into the header.
        """
        self.nbytes = HEADER_SIZE + header.stored_length
        self._dictionary: tuple[str, ...] | None = None
        self._rows: npt.NDArray[Any] | None = None
        self._bodies: list[bytes] | None = None
        self._ends: dict[str, npt.NDArray[np.uint64]] | None = None

    @classmethod
    def parse(cls, buf: Buffer, *, verify: bool = True) -> Batch:
        """Parse a buffer that contains exactly one batch.

        Args:
            buf: The bytes of the batch.
            verify: Whether to verify the payload: its checksum, its dictionary, and the sums of the row
                table. Always verify bytes from a peer or a file. Skip it only for bytes that this process has
                verified before.

        Raises:
            ClientError: `bad_batch`, with the position.
        """
        header = read_batch_header(buf)
        if len(buf) != header.size:
            raise bad_batch_error(f"the batch has {header.size} bytes by its header, here are {len(buf)}", 16)
        batch = cls(buf, header)
        if verify:
            batch._verify()
        return batch

    def stamp(self, *, origin: int, epoch: int, first_sequence: int, accepted_at: int) -> None:
        """Write the fields that the broker assigns into the header.

        The buffer must be a bytearray that no other code reads yet.

        Args:
            origin: hash64 of the instance's name.
            epoch: Epoch of the journal.
            first_sequence: Sequence of the first record; 0: not journaled.
            accepted_at: Time of acceptance in ns UTC.
        """
        assert isinstance(self.buf, bytearray)
        if self.session != self.header.session:
            write_session(self.buf, self.session)
        stamp_header(
            self.buf, origin=origin, epoch=epoch, first_sequence=first_sequence, accepted_at=accepted_at
        )
        self.header = BatchHeader._make(HEADER.unpack_from(self.buf))

    def _verify(self) -> None:
        """Verify the payload. Raises ClientError `bad_batch` if it contradicts the header."""
        header, view = self.header, memoryview(self.buf)
        if crc32c(view[HEADER_SIZE:]) != header.payload_crc:
            raise bad_batch_error("the payload's checksum doesn't fit", 24)
        entries = len(self._read_dictionary())
        if header.count <= MAX_SMALL_ROWS:
            fields = self._read_small_rows()
            few_topics, deltas = fields[2::5], fields[4::5]
            is_inconsistent = (
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
            # Summed as u64: the sum of 65,536 u32 lengths could overflow and hide an inconsistency.
            is_inconsistent = (
                int(rows["headers"].sum(dtype=np.uint64)) != header.headers_length
                or int(rows["body"].sum(dtype=np.uint64)) != header.bodies_length
                or int(topics.min()) < 1
                or int(topics.max()) >= entries
                or bool(rows["flags"].any())
                or bool((rows["delta"][1:] <= rows["delta"][:-1]).any() and header.first_publisher_sequence)
            )
        if is_inconsistent:
            raise bad_batch_error(
                "the row table contradicts the header", HEADER_SIZE + header.dictionary_length
            )

    # Properties that the broker reads of every batch.

    @property
    def count(self) -> int:
        """Number of records."""
        return self.header.count

    @property
    def is_time_certain(self) -> bool:
        """Whether the machine's clock was in step when the batch was accepted."""
        return not self.header.flags & UNCERTAIN_TIME

    @property
    def flags(self) -> int:
        """Flags of the header."""
        return self.header.flags

    @property
    def conflation_mark(self) -> str:
        """Mark of a policy on the backlog of this batch: "conflated", "conflation_over", or "" for none."""
        return MARK_WORDS.get(self.header.flags & MARKS, "")

    @property
    def first_sequence(self) -> int:
        """Sequence of the first record; 0 if the batch is not journaled."""
        return self.header.first_sequence

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; 0 if the batch is not journaled."""
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
        """Time at which the broker accepted the batch, in ns UTC."""
        return self.header.accepted_at

    @property
    def origin(self) -> int:
        """Hash of the name of the instance that accepted the batch."""
        return self.header.origin

    @property
    def first_publisher_sequence(self) -> int:
        """Publisher sequence of the first record; 0 if the publisher does not number records."""
        return self.header.first_publisher_sequence

    @property
    def last_publisher_sequence(self) -> int:
        """Publisher sequence of the last record; 0 if the publisher does not number records."""
        header = self.header
        if header.first_publisher_sequence == 0:
            return 0
        at = HEADER_SIZE + header.dictionary_length + (header.count - 1) * ROW_SIZE
        return header.first_publisher_sequence + int(ROW.unpack_from(self.buf, at)[4])

    # Dictionary.

    def _read_dictionary(self) -> tuple[str, ...]:
        if self._dictionary is None:
            end = HEADER_SIZE + self.header.dictionary_length
            self._dictionary = decode_dictionary(bytes(self.buf[HEADER_SIZE:end]))
        return self._dictionary

    @property
    def publisher_name(self) -> str:
        """Name of the client that published the batch."""
        return self._read_dictionary()[0]

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics of the batch. A row with topic index n has the topic `topics[n - 1]`."""
        return self._read_dictionary()[1:]

    @property
    def single_topic(self) -> str | None:
        """Topic of all records if the batch has only one, else None."""
        entries = self._read_dictionary()
        return entries[1] if len(entries) == 2 else None

    # Tables.

    @property
    def rows(self) -> npt.NDArray[Any]:
        """Row table as a structured array (ROW_DTYPE), without a copy."""
        if self._rows is None:
            self._rows = np.frombuffer(
                self.buf, ROW_DTYPE, self.header.count, HEADER_SIZE + self.header.dictionary_length
            )
        return self._rows

    @property
    def topic_indexes(self) -> npt.NDArray[np.uint16]:
        """Dictionary index of the topic of each row, from 1."""
        indexes: npt.NDArray[np.uint16] = self.rows["topic"]
        return indexes

    def names(self) -> list[str]:
        """Return the topic of each record."""
        entries = self._read_dictionary()
        return [entries[index] for index in self.topic_indexes.tolist()]

    def sequences(self) -> npt.NDArray[np.uint64]:
        """Return the sequence of each record; zeros if the batch is not journaled."""
        header = self.header
        if header.flags & EXPLICIT_SEQUENCES:
            at = HEADER_SIZE + header.dictionary_length + header.count * ROW_SIZE
            return np.frombuffer(self.buf, np.dtype("<u8"), header.count, at)
        if header.first_sequence == 0:
            return np.zeros(header.count, np.uint64)
        return np.arange(header.first_sequence, header.first_sequence + header.count, dtype=np.uint64)

    def publisher_sequences(self) -> npt.NDArray[np.uint64]:
        """Return the publisher sequence of each record; zeros if the publisher does not number records."""
        first = self.header.first_publisher_sequence
        if first == 0:
            return np.zeros(self.header.count, np.uint64)
        return self.rows["delta"].astype(np.uint64) + np.uint64(first)

    def numbers(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return `sequences` and `publisher_sequences` as Python integers, for iteration."""
        header = self.header
        explicit = header.first_sequence == 0 or header.flags & EXPLICIT_SEQUENCES
        sequences = (
            self.sequences().tolist()
            if explicit
            else range(header.first_sequence, header.first_sequence + header.count)
        )
        first = header.first_publisher_sequence
        if first and header.count <= MAX_SMALL_ROWS:
            return sequences, [first + delta for delta in self._read_small_rows()[4::5]]
        return sequences, self.publisher_sequences().tolist()

    def _read_small_rows(self) -> tuple[int, ...]:
        """Return the fields of a small row table as one flat tuple: for few records, numpy costs more."""
        return pack_small_row_table(self.header.count).unpack_from(
            self.buf, HEADER_SIZE + self.header.dictionary_length
        )

    def _texts_offset(self) -> int:
        """Return the position of the records' headers, which the bodies follow."""
        header = self.header
        row_size = ROW_SIZE + (SEQUENCE_SIZE if header.flags & EXPLICIT_SEQUENCES else 0)
        return HEADER_SIZE + header.dictionary_length + header.count * row_size

    def _split_texts(self, start: int, lengths: Sequence[int]) -> list[bytes]:
        # Reading from BytesIO takes a third of the time of slicing: no slice object and no bytecode per
        # record.
        return list(map(BytesIO(self.buf[start : start + sum(lengths)]).read, lengths))

    def bodies(self) -> list[bytes]:
        """Return the body of each record. The list is cached."""
        if self._bodies is None:
            few = self.header.count <= MAX_SMALL_ROWS
            lengths = self._read_small_rows()[1::5] if few else self.rows["body"].tolist()
            self._bodies = self._split_texts(self._texts_offset() + self.header.headers_length, lengths)
        return self._bodies

    def headers(self) -> list[bytes]:
        """Return the header bytes of each record."""
        return self._split_texts(self._texts_offset(), self.rows["headers"].tolist())

    def body(self, row: int) -> bytes:
        """Return the body of one record."""
        return self.bodies()[row]

    def records(self) -> Iterator[Record]:
        """Iterate over the decoded records."""
        columns = zip(self.names(), self.bodies(), self.headers(), *self.numbers(), strict=True)
        return map(Record._make, columns)

    def select(self, rows: Rows, *, explicit: bool = True) -> Batch:
        """Return a new batch of some rows, with explicit sequences and the header fields of this one.

        A new batch with records of a single topic has only that topic in its dictionary.

        Args:
            rows: Row numbers, in ascending order.
            explicit: Whether the records get sequences. False for a batch that is not stamped yet.
        """
        header = self.header
        flags = header.flags & (MARKS | UNCERTAIN_TIME) | (EXPLICIT_SEQUENCES if explicit else 0)
        sequences = self._select_sequences(rows) if explicit else None
        encoded_headers, texts = self._select_texts(rows)
        table = self.rows[rows]
        dictionary = self._select_dictionary(table)
        tables = table.tobytes() + (sequences.tobytes() if sequences is not None else b"")
        body = dictionary + tables + encoded_headers + texts
        payload = body + PADDING[len(body) & 7]
        # Fields in the order of layout.BatchHeader.
        made = bytearray(HEADER.pack(
            MAGIC, VERSION, 0, flags, len(rows),
            len(dictionary), len(payload), len(payload), crc32c(payload), 0,
            header.origin, header.epoch, self.session, int(sequences[0]) if sequences is not None else 0,
            header.accepted_at,
            header.publisher, header.first_publisher_sequence, len(encoded_headers), len(texts), 0,
        ))  # fmt: skip
        update_header_crc(made)
        made += payload
        return Batch(made, BatchHeader._make(HEADER.unpack_from(made)))

    def _select_sequences(self, rows: Rows) -> npt.NDArray[np.uint64]:
        header = self.header
        if header.flags & EXPLICIT_SEQUENCES or not header.first_sequence:
            return self.sequences()[rows]
        sequences: npt.NDArray[np.uint64] = np.asarray(rows, np.uint64) + np.uint64(header.first_sequence)
        return sequences

    def _select_dictionary(self, table: npt.NDArray[Any]) -> bytes:
        """Return the dictionary of some rows.

        Records of a single topic, as those of a queue, do not need the other topics of the batch: the
        dictionary then has one topic, and the indexes in `table` are changed. The table must be a copy.
        """
        header, entries = self.header, self._read_dictionary()
        indexes = table["topic"]
        if len(entries) > 2 and (len(indexes) == 1 or (indexes == indexes[0]).all()):
            topic, indexes[:] = entries[indexes[0]], 1
            return encode_dictionary(entries[0], (topic,))
        return bytes(self.buf[HEADER_SIZE : HEADER_SIZE + header.dictionary_length])

    def for_republish(self, publisher: str, rows: Rows) -> bytearray:
        """Build a batch in which the sequences of some rows become publisher sequences of `publisher`.

        The batch has a checksum and is not stamped.

        Args:
            publisher: Name of the client that will publish the batch.
            rows: Row numbers, in ascending order, of records that have sequences.

        Raises:
            ClientError: `bad_batch`, if it would be too large or its sequences too far apart.
        """
        sequences = self.sequences()[rows]
        first = int(sequences[0])
        encoded_headers, texts = self._select_texts(rows)
        table = self.rows[rows]
        if int(sequences[-1]) - first > MAX_DELTA:
            raise bad_batch_error(f"a batch's numbers are at most {MAX_DELTA} apart", 72)
        table["delta"] = sequences - np.uint64(first)
        return build_from_tables(
            publisher, self.topics, len(rows), table.tobytes(), encoded_headers, texts, first
        )

    def with_conflation_mark(self, mark: int) -> Batch:
        """Return a copy with only this mark (CONFLATED or CONFLATION_OVER). The payload is unchanged."""
        header = bytearray(self.buf[:HEADER_SIZE])
        _FLAGS.pack_into(header, 6, self.header.flags & ~MARKS | mark)
        update_header_crc(header)
        made = header + self.buf[HEADER_SIZE:]
        return Batch(made, BatchHeader._make(HEADER.unpack_from(made)))

    def _select_texts(self, rows: Rows) -> tuple[bytes, bytes]:
        """Return the joined header bytes and the joined bodies of some rows."""
        at = self._texts_offset()
        if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):
            # Fast path for consecutive rows, as when a batch is sent in parts: no work per record.
            row_range = slice(int(rows[0]), int(rows[-1]) + 1)
            return self._read_text_range("headers", row_range, at), self._read_text_range(
                "body", row_range, at + self.header.headers_length
            )
        bodies, heads = self.bodies(), self.headers() if self.header.headers_length else None
        chosen = rows.tolist()
        return b"".join([heads[row] for row in chosen]) if heads else b"", b"".join(
            [bodies[row] for row in chosen]
        )

    def _read_text_range(self, lengths: str, rows: slice, at: int) -> bytes:
        """Return the joined header bytes or bodies of consecutive rows.

        `lengths` is the column of the row table, and `at` is the position of the first record's data.
        """
        if lengths == "headers" and not self.header.headers_length:
            return b""
        if self._ends is None:
            self._ends = {}
        ends = self._ends.get(lengths)
        if ends is None:  # cached, because a batch of many topics is cut once for each topic
            ends = self._ends[lengths] = np.cumsum(self.rows[lengths], dtype=np.uint64)
        start = int(ends[rows.start - 1]) if rows.start else 0
        return bytes(self.buf[at + start : at + int(ends[rows.stop - 1])])
