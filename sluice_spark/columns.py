"""Columns of a journal record. The Arrow and the Spark schema are made from one list.

Bodies and headers are bytes, exactly as published: a JSON body becomes text with `CAST(body AS STRING)`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from broker_core.errors import OperatorError

MOMENT = pa.timestamp("us", tz="UTC")
COLUMNS: dict[str, pa.DataType] = {
    "sequence": pa.int64(),
    "accepted_at": MOMENT,
    "origin": pa.string(),
    "epoch": pa.int32(),
    "topic": pa.string(),
    "publisher": pa.string(),
    "publisher_sequence": pa.int64(),
    "header": pa.binary(),
    "body": pa.binary(),
}
_SPARK = {
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.float64(): "double",
    MOMENT: "timestamp",
}


def record_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of these columns in this order; of all columns if none are named.

    Raises OperatorError bad_columns.
    """
    names = list(columns) if columns else list(COLUMNS)
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or len(set(names)) != len(names):
        raise OperatorError(
            "bad_columns",
            f"{', '.join(unknown) or 'A column named twice'} can't be read from the journal.",
            f"Choose from {', '.join(COLUMNS)}.",
        )
    return pa.schema([(name, COLUMNS[name]) for name in names])


def spark_ddl(schema: pa.Schema) -> str:
    """Return an Arrow schema in Spark's DDL."""
    return ", ".join(f"`{field.name}` {_SPARK[field.type]}" for field in schema)
