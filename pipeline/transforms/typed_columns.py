"""Fields of JSON bodies as typed columns beside the bodies. Pure.

A column's name is `json_` and the field's name, so that it can't clash with other columns. Values that the
schema has no place for (of another type, or of a new field) are in `unfit_json`, as JSON. So the columns
lose nothing of a body. A body that isn't a JSON object has no typed columns; `body` has it, as all bodies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa

PREFIX: Final = "json_"
UNFIT: Final = "unfit_json"
MAX_FIELDS: Final = 200
MAX_NAME: Final = 64
TYPES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "json": pa.string(),
}
"""`json` columns hold objects, lists and fields of several types, as JSON texts."""
Fields = Mapping[str, str]
"""Field name to type, in column order."""
_EXACT: Final = 2**53


class TypedColumns(NamedTuple):
    """Typed columns of some bodies, with counts."""

    columns: pa.Table
    unfit: int
    """Values that the schema has no place for."""
    not_json: int
    """Bodies that aren't JSON objects."""
    new_fields: frozenset[str]


def schema_of(fields: Fields) -> pa.Schema:
    """Return the columns of fields."""
    return pa.schema([*((PREFIX + name, TYPES[kind]) for name, kind in fields.items()), (UNFIT, pa.string())])


def infer_fields(bodies: Iterable[bytes], known: Fields | None = None) -> dict[str, str]:
    """Return the fields of JSON objects among the bodies, known ones first, then by frequency.

    Known fields keep their types. A field that is always null has no type yet, and is left out.
    """
    kinds: dict[str, set[str]] = {}
    counts: dict[str, int] = {}
    for body in bodies:
        for name, value in (_object(body) or {}).items():
            if value is not None and _column(name):
                kinds.setdefault(name, set()).add(_type_of(value))
                counts[name] = counts.get(name, 0) + 1
    fields = dict(known or {})
    used_names = {name.lower() for name in fields}  # Spark's column names ignore case
    for name in sorted(counts, key=lambda one: (-counts[one], one)):
        if name.lower() not in used_names and len(fields) < MAX_FIELDS:
            fields[name] = _join_types(kinds[name])
            used_names.add(name.lower())
    return fields


def typed_columns(topics: pa.ChunkedArray, bodies: pa.ChunkedArray, fields: Fields) -> TypedColumns:
    """Return the typed columns of bodies. The broker's own topics, which begin with $, have none."""
    columns: dict[str, list[Any]] = {name: [] for name in fields}
    remainders: list[str | None] = []
    unfit = not_json = 0
    new: set[str] = set()
    for topic, body in zip(topics.to_pylist(), bodies.to_pylist(), strict=True):
        found = {} if topic.startswith("$") else _object(body)
        if found is None:
            found, not_json = {}, not_json + 1
        unfitting: dict[str, Any] = {}
        for name, kind in fields.items():
            value = found.get(name)
            fitting = None if value is None else _fit_column(value, kind)
            if fitting is None and value is not None:
                unfitting[name] = value
            columns[name].append(fitting)
        if len(found) > len(fields) or not found.keys() <= fields.keys():
            others = {
                name: value for name, value in found.items() if name not in fields and value is not None
            }
            new.update(name for name in others if _column(name))
            unfitting |= others
        unfit += len(unfitting)
        remainders.append(orjson.dumps(unfitting).decode() if unfitting else None)
    schema = schema_of(fields)
    arrays = [pa.array(values, schema.field(PREFIX + name).type) for name, values in columns.items()]
    return TypedColumns(
        pa.Table.from_arrays([*arrays, pa.array(remainders, pa.string())], schema=schema),
        unfit,
        not_json,
        frozenset(new),
    )


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _column(name: str) -> bool:
    return len(name) <= MAX_NAME and name.isascii() and name.replace("_", "a").isalnum()


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "long"
    return "double" if isinstance(value, float) else "string" if isinstance(value, str) else "json"


def _join_types(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    return "double" if kinds == {"long", "double"} else "json"


def _fit_column(value: Any, kind: str) -> Any:
    """Return the value as a column of this kind stores it; None if it doesn't fit."""
    value_kind = _type_of(value)
    if kind == "json":
        return orjson.dumps(value).decode()
    if kind == "double" and value_kind == "long":
        return float(value) if abs(value) <= _EXACT else None
    if kind == value_kind and not (kind == "long" and value >= 2**63):
        return value
    return None
