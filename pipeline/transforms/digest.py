"""Checksum of records that doesn't depend on their storage.

Equal for the journal's batches and a lake's file.

It covers each column in sequence order: a CRC32C of the values' bytes, and for texts and bytes one of their
lengths.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker_core.checksum import crc32c
from sluice_spark.columns import COLUMNS


class RecordDigest:
    """Checksum of records that are added in sequence order, in any portions."""

    def __init__(self) -> None:
        self.records = 0
        self._values = dict.fromkeys(COLUMNS, 0)
        self._lengths = dict.fromkeys(COLUMNS, 0)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next records. All columns must be present, in any order."""
        self.records += batch.num_rows
        for name, kind in COLUMNS.items():
            column = batch.column(name)
            if pa.types.is_string(kind) or pa.types.is_binary(kind):
                lengths = pc.binary_length(column).to_numpy(zero_copy_only=False).astype(np.int32)
                self._lengths[name] = crc32c(lengths.data, self._lengths[name])
                self._values[name] = crc32c(_data(column), self._values[name])
            else:
                numbers = pc.fill_null(column.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
                self._values[name] = crc32c(np.ascontiguousarray(numbers).data, self._values[name])

    def text(self) -> str:
        """Return the checksum so far, 32 hexadecimal digits."""
        content = repr((self.records, self._values, self._lengths)).encode()
        return blake2b(content, digest_size=16).hexdigest()


def digest_of(table: pa.Table) -> str:
    """Return the checksum of a table in any order."""
    made = RecordDigest()
    order = np.argsort(table.column("sequence").to_numpy(), kind="stable")
    for batch in table.take(pa.array(order)).to_batches():
        made.add(batch)
    return made.text()


def _data(column: pa.Array) -> memoryview:
    """Return the bytes of all values, joined. Nulls have none."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return memoryview(b"")
    edges = np.frombuffer(offsets, np.int32)
    return memoryview(data)[edges[column.offset] : edges[column.offset + len(column)]]
