"""Builds one Arrow batch from many record batches, straight from their buffers.

In Python the cost is per object touched. So the row tables of many small batches are joined and decoded
together. NumPy repeats the header fields for all rows. The bodies are contiguous in each batch; joined,
they are the data of one Arrow column whose offsets are the running sum of the lengths. No record ever
becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker_core.batch import EXPLICIT_SEQUENCES, HEADER_SIZE, ROW_DTYPE, ROW_SIZE, Batch, Rows
from broker_core.bookmark import MAX_SEQUENCE
from sluice_spark.columns import MOMENT

Ints = npt.NDArray[np.int64]
HEADER_DTYPE = np.dtype(
    {
        "names": ["count", "epoch", "first_sequence", "accepted_at", "first_publisher_sequence"],
        "formats": ["<u4", "<u4", "<u8", "<i8", "<u8"],
        "offsets": [8, 40, 48, 56, 72],
        "itemsize": HEADER_SIZE,
    }
)
"""Fields of batch headers that become columns. broker_core/batch/layout.py has all fields."""
_COUNT = slice(8, 12)
MIN_SELECTIVITY = 16
"""If at most one of this many records is wanted, the wanted records are cut out of their batch."""
SELECTIVITY_RETRY_BATCHES = 16
"""Number of following batches that skip the test for FEW after a batch failed it.

A common topic would never pass the test.
"""
MIN_VECTORIZED = 32
"""Below this number dictionaries are walked one by one.

One step of NumPy costs as much as this many of Python.
"""


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Filter by topic, sequence and time (ns UTC). Bounds are inclusive.

    `needles`: every wanted topic contains one of these bytes; empty if no such bytes are known. A
    dictionary without them isn't decoded, which makes a rare topic cheap among ten thousand.
    """

    topic: Callable[[str], bool] | None = None
    needles: tuple[bytes, ...] = ()
    names: frozenset[bytes] = frozenset()
    """The wanted topics, if all patterns are plain names. Then nothing else of a dictionary is decoded."""
    first: int = 0
    last: int = MAX_SEQUENCE
    first_at: int | None = None
    last_at: int | None = None


class DictionaryEntries(NamedTuple):
    """Entries of several dictionaries in one column."""

    names: pa.Array
    bases: Ints
    """Index of each dictionary's first entry, which is the publisher."""
    name_indexes: Ints | None
    """Index into `names` of each entry; None: equal to the entry's own index."""
    is_selected: npt.NDArray[np.bool_] | None
    """Mask of the entries that are wanted topics; None: all."""

    def texts(self, indexes: Ints) -> pa.Array:
        """Return the texts of the entries at these indexes."""
        return self.names.take(pa.array(indexes if self.name_indexes is None else self.name_indexes[indexes]))


class ArrowBatchBuilder:
    """Builder of one Arrow batch from many record batches."""

    def __init__(self, schema: pa.Schema, instance: str, record_filter: RecordFilter) -> None:
        self._schema = schema
        self._instance = instance
        self._filter = record_filter
        self._batches_to_skip = 0
        self._marks = tuple(len(name).to_bytes(2, "little") + name for name in record_filter.names)
        self._clear()

    def _clear(self) -> None:
        self.records = 0
        self.nbytes = 0
        self._batch_headers: list[Any] = []
        self._dictionaries: list[bytes] = []
        self._topic_entries: list[list[tuple[int, bytes]]] = []
        self._tables: list[Any] = []
        self._headers: list[Any] = []
        self._bodies: list[Any] = []
        self._explicit: list[tuple[int, npt.NDArray[np.uint64]]] = []
        self._filtered: list[tuple[int, int, Rows]] = []

    def add(self, batch: Batch, filtered_rows: Rows | None = None) -> None:
        """Add a batch, or its rows `filtered_rows`, which a filter selected.

        A batch without wanted records costs only this call.
        """
        header, view, record_filter = batch.header, batch.buf, self._filter
        at = header.accepted_at
        if (record_filter.first_at is not None and at < record_filter.first_at) or (
            record_filter.last_at is not None and at > record_filter.last_at
        ):
            return
        if filtered_rows is not None and not len(filtered_rows):
            return
        count, headers_length = header.count, header.headers_length
        rows_at = HEADER_SIZE + header.dictionary_length
        raw = bytes(view[HEADER_SIZE:rows_at])
        if self._marks:
            topic_entries = _find_topics(raw, self._marks)
            if not topic_entries:
                return
            if self._batches_to_skip:
                self._batches_to_skip -= 1
            elif self._add_selected(batch, raw, topic_entries, filtered_rows):
                return
            else:
                self._batches_to_skip = SELECTIVITY_RETRY_BATCHES
            self._topic_entries.append(topic_entries)
        elif record_filter.needles and not any(needle in raw for needle in record_filter.needles):
            return
        if filtered_rows is not None and len(filtered_rows) < count:
            self._filtered.append((self.records, self.records + count, filtered_rows))
        # Slices of the batch are kept, not copies; `build_batch` joins them once.
        texts_at = rows_at + count * ROW_SIZE
        self._batch_headers.append(view[:HEADER_SIZE])
        self._dictionaries.append(raw)
        self._tables.append(view[rows_at:texts_at])
        if header.flags & EXPLICIT_SEQUENCES:
            self._explicit.append((self.records, batch.sequences()))
            texts_at += count * 8
        if headers_length:
            self._headers.append(view[texts_at : texts_at + headers_length])
            texts_at += headers_length
        self._bodies.append(view[texts_at : texts_at + header.bodies_length])
        self.records += count
        self.nbytes += batch.nbytes

    def _add_selected(
        self, batch: Batch, raw: bytes, topic_entries: list[tuple[int, bytes]], filtered_rows: Rows | None
    ) -> bool:
        """Copy the wanted records out of the batch if they are few; return False if they aren't."""
        header, view = batch.header, memoryview(batch.buf)
        count, rows_at = header.count, HEADER_SIZE + header.dictionary_length
        table = np.frombuffer(view, ROW_DTYPE, count, rows_at)
        topics = table["topic"]
        is_chosen = topics == topic_entries[0][0]
        for index, _ in topic_entries[1:]:
            is_chosen |= topics == index
        rows = np.flatnonzero(is_chosen)
        if len(rows) * MIN_SELECTIVITY > count:
            return False
        if filtered_rows is not None:
            rows = np.intersect1d(rows, filtered_rows, assume_unique=True)
        if not len(rows):
            return True
        texts_at = rows_at + count * ROW_SIZE
        sequences = header.first_sequence + rows.astype(np.uint64)
        if header.flags & EXPLICIT_SEQUENCES:
            sequences = batch.sequences()[rows]
            texts_at += count * 8
        head = bytearray(view[:HEADER_SIZE])
        head[_COUNT] = len(rows).to_bytes(4, "little")
        self._batch_headers.append(head)
        self._dictionaries.append(raw)
        self._topic_entries.append(topic_entries)
        self._tables.append(table[rows].tobytes())
        self._explicit.append((self.records, sequences))
        if header.headers_length:
            self._headers += _copy_texts(view, texts_at, table["headers"], rows)
        self._bodies += _copy_texts(view, texts_at + header.headers_length, table["body"], rows)
        self.records += len(rows)
        self.nbytes += len(raw)
        return True

    def build_batch(self) -> pa.RecordBatch | None:
        """Return the wanted records added since the last call; None if there are none."""
        if not self._batch_headers:
            return None
        heads = np.frombuffer(b"".join(self._batch_headers), HEADER_DTYPE)
        rows = np.frombuffer(b"".join(self._tables), ROW_DTYPE)
        columns = self._decode(heads, rows)
        self._clear()
        if columns is None:
            return None
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)

    def _decode(self, heads: npt.NDArray[Any], rows: npt.NDArray[Any]) -> dict[str, pa.Array] | None:
        """Return the columns of the wanted records; None without any.

        It selects the records first, so that no column is built for the others.
        """
        counts = heads["count"].astype(np.int64)
        sequences = self._sequences(counts, heads["first_sequence"].astype(np.int64))
        entries = self._entries()
        topics = np.repeat(entries.bases, counts) + rows["topic"]
        mask = self._mask(sequences, topics, entries)
        chosen = None if mask is None else np.flatnonzero(mask)
        if chosen is not None and not len(chosen):
            return None
        batch_of = None if chosen is None else np.repeat(np.arange(len(heads)), counts)[chosen]

        def pick(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return column if chosen is None else column[chosen]

        def spread(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.repeat(column, counts) if batch_of is None else column[batch_of]

        def join_values(lengths: npt.NDArray[Any], parts: list[Any]) -> pa.Array:
            if not parts and not lengths.any():  # records usually have no headers
                return pa.repeat(pa.scalar(b"", pa.binary()), len(pick(sequences)))
            made = _binary_column(lengths, parts)
            return made if chosen is None else made.take(pa.array(chosen))

        made: dict[str, Callable[[], pa.Array]] = {
            "sequence": lambda: pa.array(pick(sequences)),
            "accepted_at": lambda: pa.array(spread(heads["accepted_at"] // 1_000)).view(MOMENT),
            "origin": lambda: pa.repeat(pa.scalar(self._instance, pa.string()), len(pick(sequences))),
            "epoch": lambda: pa.array(spread(heads["epoch"].astype(np.int32))),
            "topic": lambda: entries.texts(pick(topics)),
            "publisher": lambda: entries.texts(spread(entries.bases)),
            "publisher_sequence": lambda: _publisher_sequences(
                spread(heads["first_publisher_sequence"].astype(np.int64)), pick(rows["delta"])
            ),
            "header": lambda: join_values(rows["headers"], self._headers),
            "body": lambda: join_values(rows["body"], self._bodies),
        }
        return {name: made[name]() for name in self._schema.names}

    def _entries(self) -> DictionaryEntries:
        record_filter = self._filter
        if self._marks:
            return _build_known_entries(self._dictionaries, self._topic_entries)
        names, bases = _build_entries(self._dictionaries)
        if record_filter.topic is None:
            return DictionaryEntries(names, bases, None, None)
        # Test each distinct name once, however many dictionaries contain it.
        different = names.dictionary_encode()
        chosen = np.fromiter(map(record_filter.topic, different.dictionary.to_pylist()), np.bool_)
        return DictionaryEntries(names, bases, None, chosen[different.indices.to_numpy()])

    def _sequences(self, counts: Ints, firsts: Ints) -> Ints:
        before = np.cumsum(counts) - counts
        sequences = np.repeat(firsts - before, counts) + np.arange(self.records)
        for at, explicit in self._explicit:
            sequences[at : at + len(explicit)] = explicit
        return sequences

    def _mask(
        self, sequences: Ints, topics: Ints, entries: DictionaryEntries
    ) -> npt.NDArray[np.bool_] | None:
        record_filter = self._filter
        masks: list[npt.NDArray[np.bool_]] = []
        if sequences[0] < record_filter.first or sequences[-1] > record_filter.last:
            masks.append((sequences >= record_filter.first) & (sequences <= record_filter.last))
        if entries.is_selected is not None:
            masks.append(entries.is_selected[topics])
        if self._filtered:
            passed = np.ones(len(sequences), np.bool_)
            for start, stop, rows in self._filtered:
                passed[start:stop] = False
                passed[start + rows] = True
            masks.append(passed)
        return np.logical_and.reduce(masks) if masks else None


def _copy_texts(view: memoryview, at: int, lengths: npt.NDArray[Any], rows: Rows) -> list[bytes]:
    """Copy the headers or bodies of some rows, so that their batch can be freed."""
    ends = np.cumsum(lengths, dtype=np.int64)[rows]
    starts = ends - lengths[rows]
    return [
        bytes(view[at + start : at + end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def _find_topics(raw: bytes, marks: Iterable[bytes]) -> list[tuple[int, bytes]]:
    """Return index and name of the dictionary entries that are wanted topics.

    `marks` are the names preceded by their lengths, as in the dictionary. A name may occur twice. Names
    that brokers accept contain no zero bytes and have fewer than 256 bytes. So each entry has exactly one
    zero, in its length, and its index is the number of zeros before it. In any other dictionary a mark may
    occur within an entry, so its entries are walked one by one.
    """
    targets = sorted((offset, name) for name in marks for offset in _find_all(raw, name))
    last = raw[0] | raw[1] << 8
    if targets and raw.rstrip(b"\0").count(b"\0", 2) == last:
        return [(index, mark[2:]) for at, mark in targets if (index := raw.count(b"\0", 2, at))]
    topic_entries: list[tuple[int, bytes]] = []
    at, index = 2, 0
    for target, mark in targets:
        while at < target and index < last:
            at += 2 + (raw[at] | raw[at + 1] << 8)
            index += 1
        if at == target and 0 < index < last:  # entry 0 is the publisher
            topic_entries.append((index, mark[2:]))
    return topic_entries


def _find_all(raw: bytes, mark: bytes) -> Iterator[int]:
    at = raw.find(mark)
    while at >= 0:
        yield at
        at = raw.find(mark, at + 1)


def _build_known_entries(
    dictionaries: list[bytes], topic_entries: list[list[tuple[int, bytes]]]
) -> DictionaryEntries:
    """Build the entries if the indexes of wanted topics are known.

    Only these and the publishers get names.
    """
    numbers = np.fromiter((raw[0] | raw[1] << 8 for raw in dictionaries), np.int64, len(dictionaries))
    bases = np.cumsum(numbers) - numbers
    names: dict[bytes, int] = {}
    publishers = [names.setdefault(raw[4 : 4 + (raw[2] | raw[3] << 8)], len(names)) for raw in dictionaries]
    counts = np.fromiter(map(len, topic_entries), np.int64, len(topic_entries))
    indexes = np.repeat(bases, counts) + [index for entries in topic_entries for index, _ in entries]
    name_indexes = np.zeros(int(numbers.sum()), np.int64)
    name_indexes[bases] = publishers
    name_indexes[indexes] = [
        names.setdefault(text, len(names)) for entries in topic_entries for _, text in entries
    ]
    is_selected = np.zeros(len(name_indexes), np.bool_)
    is_selected[indexes] = True
    return DictionaryEntries(
        pa.array(list(names), pa.binary()).view(pa.string()), bases, name_indexes, is_selected
    )


def _build_entries(dictionaries: list[bytes]) -> tuple[pa.Array, Ints]:
    """Return all entries of the dictionaries as one text column, and each dictionary's first index."""
    raw = b"".join(dictionaries)
    data = np.frombuffer(raw, np.uint8)
    lengths = np.fromiter(map(len, dictionaries), np.int64, len(dictionaries))
    at = np.cumsum(lengths) - lengths
    numbers = data[at] | data[at + 1].astype(np.int64) << 8
    bases = np.cumsum(numbers) - numbers
    edges = _edges_by_zeros(data, at, numbers, bases)
    if edges is None:
        edges = _edges_by_steps(raw, data, at, numbers, bases)
    # Entries alternate with the length fields between them in one column, so every second element is an
    # entry.
    alternating = pa.Array.from_buffers(
        pa.string(), edges.size - 1, [None, pa.py_buffer(edges), pa.py_buffer(raw)]
    )
    return alternating.take(pa.array(np.arange(0, edges.size - 1, 2))), bases


def _edges_by_zeros(
    data: npt.NDArray[np.uint8], at: Ints, numbers: Ints, bases: Ints
) -> npt.NDArray[np.int32] | None:
    """Find start and end of all entries in one step; return None for dictionaries that no broker writes.

    Names that brokers accept contain no zero bytes and have fewer than 256 bytes, so an entry's only zero
    is in its length. This is a guess, so each entry is compared with the one before it. If all follow one
    another, a walk would find the same.
    """
    zeros = np.flatnonzero(data == 0)
    first = np.searchsorted(zeros, at + 2)  # behind the entry count, which may contain zeros
    if not len(zeros) or (first + numbers > len(zeros)).any():
        return None
    begins = zeros[np.arange(int(numbers.sum())) + np.repeat(first - bases, numbers)] + 1
    ends = begins + data[begins - 2]
    expected = np.empty_like(begins)
    expected[1:] = ends[:-1] + 2
    expected[bases[numbers > 0]] = at[numbers > 0] + 4
    if (begins != expected).any():
        return None
    edges = np.empty(2 * len(begins), np.int32)
    edges[::2], edges[1::2] = begins, ends
    return edges


def _edges_by_steps(
    raw: bytes, data: npt.NDArray[np.uint8], at: Ints, numbers: Ints, bases: Ints
) -> npt.NDArray[np.int32]:
    """Find start and end of all entries of any dictionaries.

    An entry's position follows from the entry before. So one step of NumPy advances one entry in all
    dictionaries. The few that are longer than all others are walked alone.
    """
    sizes = data[:-1] | data[1:].astype(np.int32) << 8  # the length field at each offset, if there is one
    edges = np.empty(2 * int(numbers.sum()), np.int32)
    order = np.argsort(-numbers, kind="stable")  # longest first, so that unfinished ones are in front
    at, edge, remaining = at[order] + 2, 2 * bases[order], -numbers[order]
    step = 0
    while (active := int(remaining.searchsorted(-step))) >= MIN_VECTORIZED:
        at, edge = at[:active], edge[:active]
        begin = at + 2
        at = begin + sizes[at]
        edges[edge] = begin
        edges[edge + 1] = at
        edge = edge + 2
        step += 1
    for position, first, last in zip(
        at[:active].tolist(), edge[:active].tolist(), remaining.tolist(), strict=False
    ):
        edges_of_dictionary: list[int] = []
        for _ in range(-last - step):
            begin_at = position + 2
            position = begin_at + (raw[position] | raw[position + 1] << 8)
            edges_of_dictionary += (begin_at, position)
        edges[first : first + len(edges_of_dictionary)] = edges_of_dictionary
    return edges


def _publisher_sequences(bases: Ints, deltas: npt.NDArray[np.uint32]) -> pa.Array:
    """Return the publisher sequences; null for a publisher that assigns none."""
    return pa.array(bases + deltas, mask=bases == 0)


def _binary_column(lengths: npt.NDArray[np.uint32], parts: list[Any]) -> pa.Array:
    """Return a binary column over the joined parts. Offsets are 32-bit: pass less than 2 GiB."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = b"".join(parts)
    if len(data) != offsets[-1]:
        raise ValueError(f"the row tables speak of {offsets[-1]} bytes, here are {len(data)}")
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
