"""Which typed columns a lake's record files have: `_typed/schema.json`, inferred once, and after that changed only where somebody asks for it.

One for the whole directory: a column has one type in all files, whoever's records they are.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from broker_core.errors import OperatorError
from pipeline.lake_files import write_whole
from pipeline.transforms.typed_columns import TYPES

FOLDER = "_typed"
"""Spark and pyarrow ignore names that start with "_"."""


class TypedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the file."""

    version: int = 1
    fields: dict[str, str]


def typed_path(directory: Path) -> Path:
    """Where it stands."""
    return directory / FOLDER / "schema.json"


def read_typed(directory: Path) -> dict[str, str] | None:
    """The fields and their types; None where bodies aren't typed. OperatorError lake_damaged."""
    path = typed_path(directory)
    try:
        fields = msgspec.json.decode(path.read_bytes(), type=TypedSchema).fields
        if not set(fields.values()) <= TYPES.keys():
            raise ValueError("it has types that nobody knows")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OperatorError(
            "lake_damaged", f"{path} can't be read: {error}.", "Restore it, or use another lake.", file=str(path)
        ) from error  # fmt: skip
    return fields


def write_typed(directory: Path, fields: dict[str, str]) -> None:
    """Put it in place whole. OperatorError lake_unwritable."""
    write_whole(
        typed_path(directory), msgspec.json.format(msgspec.json.encode(TypedSchema(fields=fields)), indent=1)
    )
