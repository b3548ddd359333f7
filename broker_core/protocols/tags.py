"""What the structs of a union are called on the wire: their field `c`, as msgspec has it."""

from __future__ import annotations

from types import UnionType
from typing import get_args

import msgspec


def tag_of(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


def structs_of(union: UnionType) -> tuple[type[msgspec.Struct], ...]:
    """The structs of a union of them, in its order."""
    return get_args(union)


def tags_of(union: UnionType) -> tuple[str, ...]:
    """The names of all commands or replies of a union, in its order."""
    return tuple(tag_of(kind) for kind in structs_of(union))
