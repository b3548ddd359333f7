"""Names and fields of commands and replies on the wire, read from their structs.

Error messages use them to say which values a field accepts. The tables of docs/protocol.md are compared with
them.

A field's type has all that msgspec checks. `field_meta` adds what the type can't express: the unit, and
bounds that are checked in `names` or by the parser of the text.
"""

from __future__ import annotations

from functools import lru_cache
from types import UnionType
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import inspect


class FieldInfo(NamedTuple):
    """Field of a command or reply, described for users.

    A part is empty if there is nothing to say.
    """

    name: str
    type: str
    unit: str
    bounds: str

    def accepted_values(self) -> str:
        """Return the accepted values as part of a sentence: `integer, 100 to 3,600,000 ms`."""
        bounds = " ".join(filter(None, (self.bounds, self.unit))).replace("`", "")
        return f"{self.type}, {bounds}" if bounds else self.type


def field_meta(bounds: str = "", unit: str = "", **checked: Any) -> msgspec.Meta:
    """Return a field's annotation.

    Args:
        bounds: accepted values in words, where the type says too little.
        unit: unit of a number.
        checked: constraints that msgspec checks.
    """
    return msgspec.Meta(
        extra={key: text for key, text in (("bounds", bounds), ("unit", unit)) if text}, **checked
    )


@lru_cache(maxsize=64)
def list_fields(kind: type[msgspec.Struct]) -> dict[str, FieldInfo]:
    """Return the fields of a command or reply by name, in their order."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: _describe_field(field) for field in info.fields}


def _describe_field(field: inspect.Field) -> FieldInfo:
    bare, extra = _strip_annotations(field.type)
    return FieldInfo(
        field.encode_name,
        _describe_type(bare),
        extra.get("unit", ""),
        extra.get("bounds") or _describe_bounds(bare),
    )


def _strip_annotations(type_: inspect.Type) -> tuple[inspect.Type, dict[str, str]]:
    """Return a type without None and annotations, and the stated unit and bounds."""
    extra: dict[str, str] = {}
    while True:
        if isinstance(type_, inspect.Metadata):
            extra |= type_.extra or {}
            type_ = type_.type
        elif isinstance(type_, inspect.UnionType) and any(
            isinstance(one, inspect.NoneType) for one in type_.types
        ):
            members = tuple(one for one in type_.types if not isinstance(one, inspect.NoneType))
            if len(members) > 1:
                return inspect.UnionType(members), extra
            type_ = members[0]
        else:
            return type_, extra


_WORDS: dict[type[inspect.Type], str] = {
    inspect.StrType: "text",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "boolean",
    inspect.RawType: "any JSON",
    inspect.AnyType: "any JSON",
    inspect.DictType: "object",
    inspect.LiteralType: "text",
}


def _describe_type(bare: inspect.Type) -> str:
    """Return the name of a type as users read it."""
    if isinstance(bare, inspect.ListType):
        return f"list of {_describe_type(_strip_annotations(bare.item_type)[0])}"
    if isinstance(bare, inspect.TupleType):
        return f"[{', '.join(_describe_type(_strip_annotations(item)[0]) for item in bare.item_types)}]"
    if isinstance(bare, inspect.UnionType):
        words = [_describe_type(_strip_annotations(one)[0]) for one in bare.types]
        return "number" if set(words) == {"integer", "number"} else " or ".join(words)
    return _WORDS[type(bare)]


def _describe_bounds(bare: inspect.Type) -> str:
    """Return the bounds of a type as users read them; "" without any."""
    if isinstance(bare, inspect.LiteralType):
        return ", ".join(f"`{value}`" for value in bare.values)
    if isinstance(bare, inspect.StrType):
        return _describe_range(bare.min_length, bare.max_length, " characters")
    if isinstance(bare, inspect.IntType):
        return _describe_range(bare.ge, bare.le)
    if isinstance(bare, inspect.ListType):
        return "; each ".join(
            filter(None, (_describe_range(bare.min_length, bare.max_length), _stated_bounds(bare.item_type)))
        )
    if isinstance(bare, inspect.TupleType):
        return _stated_bounds(bare.item_types[0])
    return ""


def _stated_bounds(type_: inspect.Type) -> str:
    bare, extra = _strip_annotations(type_)
    return extra.get("bounds") or _describe_bounds(bare)


def _describe_range(low: int | None, high: int | None, suffix: str = "") -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return f"from {low:,}{suffix}"
    return f"{low:,} to {high:,}{suffix}" if low is not None else f"up to {high:,}{suffix}"


def get_tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


def list_structs(union: UnionType) -> tuple[type[msgspec.Struct], ...]:
    """Return the structs of a union, in its order."""
    return get_args(union)


def list_tags(union: UnionType) -> tuple[str, ...]:
    """Return the names of all commands or replies of a union, in its order."""
    return tuple(get_tag(kind) for kind in list_structs(union))
