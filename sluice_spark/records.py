"""Many record batches to one Arrow batch, straight from their buffers.

In Python the cost is per object touched. So the row tables of many small batches are joined and decoded at once, what
stands once in a header is repeated by NumPy, and the bodies, which stand contiguously in each batch, are joined into
the data of one Arrow column whose offsets are the running sum of the lengths. No record is ever a Python object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
"""The fields of batch headers that columns are made of (batch.py has all of them)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records: a test of topics, sequences and times (ns UTC), each with its last value included.

    `needles` are bytes one of which stands in every topic that is wanted, if that can be said: a dictionary without them
    needn't be read, which is what makes a rare topic cheap among ten thousand.
    """

    topic: Callable[[str], bool] | None = None
    needles: tuple[bytes, ...] = ()
    first: int = 0
    last: int = MAX_SEQUENCE
    first_at: int | None = None
    last_at: int | None = None


class Gatherer:
    """Takes batches until there are enough, then makes one Arrow batch of them."""

    def __init__(self, schema: pa.Schema, instance: str, wanted: Wanted) -> None:
        self._schema = schema
        self._instance = instance
        self._wanted = wanted
        self._names = frozenset(schema.names)
        self._clear()

    def _clear(self) -> None:
        self.records = 0
        self.nbytes = 0
        # Learned anew for each Arrow batch: publishers of many topics make a new dictionary almost every time, and
        # what was kept of all of them would be longer than the records.
        self._dictionaries: dict[bytes, int] = {}
        self._topic_bases: list[int] = []
        self._publisher_codes: list[int] = []
        self._topics: list[str] = []
        self._chosen: list[bool] = []
        self._publishers: dict[str, int] = {}
        self._heads: list[Any] = []
        self._tables: list[Any] = []
        self._headers: list[Any] = []
        self._bodies: list[Any] = []
        self._explicit: list[tuple[int, npt.NDArray[np.uint64]]] = []
        self._known: list[int] = []
        self._passed: list[tuple[int, int, Rows]] = []

    def add(self, batch: Batch, passed: Rows | None = None) -> None:
        """Take a batch, or those of its rows that passed a filter. One in which nothing is wanted costs no more than
        this call."""
        header, view, wanted = batch.header, batch.buf, self._wanted
        at = header.accepted_at
        if (wanted.first_at is not None and at < wanted.first_at) or (
            wanted.last_at is not None and at > wanted.last_at
        ):
            return
        if passed is not None and not len(passed):
            return
        count, headers_length = header.count, header.headers_length
        rows_at = HEADER_SIZE + header.dictionary_length
        raw = bytes(view[HEADER_SIZE:rows_at])
        if wanted.needles and not any(needle in raw for needle in wanted.needles):
            return
        known = self._dictionaries.get(raw)
        if known is None:
            known = self._learn(batch, raw)
        if known < 0:
            return
        texts_at = rows_at + count * ROW_SIZE
        if passed is not None and len(passed) < count:
            self._passed.append((self.records, self.records + count, passed))
        self._known.append(known)
        self._heads.append(view[:HEADER_SIZE])
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

    def _learn(self, batch: Batch, raw: bytes) -> int:
        """Number a dictionary; -1 when nothing of it is wanted."""
        wanted = self._wanted.topic
        chosen = [wanted is None or wanted(topic) for topic in batch.topics]
        known = len(self._topic_bases) if any(chosen) else -1
        if known >= 0:
            self._topic_bases.append(len(self._topics) - 1)  # rows count topics from 1
            self._topics += batch.topics
            self._chosen += chosen
            publisher = self._publishers.setdefault(batch.publisher_name, len(self._publishers))
            self._publisher_codes.append(publisher)
        self._dictionaries[raw] = known
        return known

    def take(self) -> pa.RecordBatch | None:
        """The wanted records gathered since the last call; None when there are none."""
        if not self._known:
            return None
        heads = np.frombuffer(b"".join(self._heads), HEADER_DTYPE)
        rows = np.frombuffer(b"".join(self._tables), ROW_DTYPE)
        columns = self._decode(heads, rows)
        self._clear()
        if columns is None:
            return None
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)

    def _decode(self, heads: npt.NDArray[Any], rows: npt.NDArray[Any]) -> dict[str, pa.Array] | None:
        """The columns of the wanted records: which these are is found first, so that nothing is made of the others."""
        counts = heads["count"].astype(np.int64)
        known = np.array(self._known)
        sequences = self._sequences(counts, heads["first_sequence"].astype(np.int64))
        topics = np.repeat(np.array(self._topic_bases, np.int32)[known], counts) + rows["topic"]
        mask = self._mask(sequences, topics)
        if mask is not None and not mask.any():
            return None

        def pick(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return column if mask is None else column[mask]

        def spread(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return pick(np.repeat(column, counts))

        def joined(lengths: npt.NDArray[Any], parts: list[Any]) -> pa.Array:
            made = _binary(lengths, parts)
            return made if mask is None else made.filter(pa.array(mask))

        made: dict[str, Callable[[], pa.Array]] = {
            "sequence": lambda: pa.array(pick(sequences)),
            "accepted_at": lambda: pa.array(spread(heads["accepted_at"] // 1_000)).view(MOMENT),
            "origin": lambda: _named(np.zeros(len(pick(sequences)), np.int32), [self._instance]),
            "epoch": lambda: pa.array(spread(heads["epoch"].astype(np.int32))),
            "topic": lambda: _named(pick(topics), self._topics),
            "publisher": lambda: _named(
                spread(np.array(self._publisher_codes, np.int32)[known]), list(self._publishers)
            ),
            "publisher_sequence": lambda: _numbered(
                spread(heads["first_publisher_sequence"].astype(np.int64)), pick(rows["delta"])
            ),
            "header": lambda: joined(rows["headers"], self._headers),
            "body": lambda: joined(rows["body"], self._bodies),
        }
        return {name: made[name]() for name in self._schema.names}

    def _sequences(self, counts: Ints, firsts: Ints) -> Ints:
        before = np.cumsum(counts) - counts
        sequences = np.repeat(firsts - before, counts) + np.arange(self.records)
        for at, explicit in self._explicit:
            sequences[at : at + len(explicit)] = explicit
        return sequences

    def _mask(self, sequences: Ints, topics: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
        wanted = self._wanted
        masks: list[npt.NDArray[np.bool_]] = []
        if sequences[0] < wanted.first or sequences[-1] > wanted.last:
            masks.append((sequences >= wanted.first) & (sequences <= wanted.last))
        if wanted.topic is not None and not all(self._chosen):
            masks.append(np.array(self._chosen)[topics])
        if self._passed:
            passed = np.ones(len(sequences), np.bool_)
            for start, stop, rows in self._passed:
                passed[start:stop] = False
                passed[start + rows] = True
            masks.append(passed)
        return np.logical_and.reduce(masks) if masks else None


def _named(codes: npt.NDArray[np.int32], names: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string())).cast(pa.string())


def _numbered(bases: Ints, deltas: npt.NDArray[np.uint32]) -> pa.Array:
    """The publisher's number of each record, null where the publisher doesn't number."""
    return pa.array(bases + deltas, mask=bases == 0)


def _binary(lengths: npt.NDArray[np.uint32], parts: list[Any]) -> pa.Array:
    """A column of bytes over the parts, joined. Offsets are 32 bits wide: gather less than 2 GiB."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = b"".join(parts)
    if len(data) != offsets[-1]:
        raise ValueError(f"the row tables speak of {offsets[-1]} bytes, here are {len(data)}")
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
