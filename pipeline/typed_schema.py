"""Typed columns of a lake's record files: `_typed/schema.json`, inferred once, and changed only on request.

The whole directory has one schema: a column has one type in all files, of all instances.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from broker_core.errors import OperatorError
from pipeline.lake_files import write_whole
from pipeline.transforms.typed_columns import TYPES

FOLDER = "_typed"
"""Directory of the schema. Spark and pyarrow ignore names that start with "_"."""


class TypedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of the file."""

    version: int = 1
    fields: dict[str, str]


def typed_path(directory: Path) -> Path:
    """Return the path of the file."""
    return directory / FOLDER / "schema.json"


def read_typed(directory: Path) -> dict[str, str] | None:
    """Return the fields and their types; None if bodies aren't typed. Raises OperatorError lake_damaged."""
    path = typed_path(directory)
    try:
        fields = msgspec.json.decode(path.read_bytes(), type=TypedSchema).fields
        if not set(fields.values()) <= TYPES.keys():
            raise ValueError("it has unknown types")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OperatorError(
            "lake_damaged",
            f"{path} can't be read: {error}.",
            "Restore it, or use another lake.",
            file=str(path),
        ) from error
    return fields


def write_typed(directory: Path, fields: dict[str, str]) -> None:
    """Write the file atomically. Raises OperatorError lake_unwritable."""
    write_whole(
        typed_path(directory), msgspec.json.format(msgspec.json.encode(TypedSchema(fields=fields)), indent=1)
    )
