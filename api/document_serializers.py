"""Conversion of broker documents (msgspec structs) to JSON values, and to serializers that describe them in
the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect
from rest_framework import serializers

from broker_core.documents.base import Document

Field = serializers.Field[Any, Any, Any, Any]


def to_plain(document: Document | Iterable[Document]) -> Any:
    """Return a document, or several documents, as plain values that DRF's renderers accept."""
    return msgspec.to_builtins(document)


@cache
def serializer_for(document: type[Document]) -> type[serializers.Serializer[Any]]:
    """Return a serializer class that describes a document's fields in the OpenAPI schema.

    Nullable fields and field descriptions come from the struct's types. The class is named after the
    document.

    Raises:
        TypeError: A field has a type that no serializer describes.
    """
    info = inspect.type_info(document)
    assert isinstance(info, inspect.StructType)
    fields = {field.encode_name: _field(field.type, required=field.required) for field in info.fields}
    return type(
        f"{document.__name__}Serializer",
        (serializers.Serializer,),
        {"__doc__": document.__doc__, "__module__": __name__, **fields},
    )


def _field(
    kind: inspect.Type, *, required: bool = True, allow_null: bool = False, help_text: str | None = None
) -> Field:
    """Return the serializer field of a struct field's type."""
    if isinstance(kind, inspect.Metadata):
        extra = (kind.extra_json_schema or {}).get("description")
        return _field(kind.type, required=required, allow_null=allow_null, help_text=extra or help_text)
    if isinstance(kind, inspect.UnionType):
        others = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        null = any(isinstance(one, inspect.NoneType) for one in kind.types)
        if len(others) > 1:  # a setting's value may have any of several types
            return serializers.JSONField(**_options(required, null, help_text))
        return _field(others[0], required=required, allow_null=null, help_text=help_text)
    for known, make in _MAKERS.items():
        if isinstance(kind, known):
            return make(kind, _options(required, allow_null, help_text))
    raise TypeError(f"No serializer describes {kind}")


def _options(required: bool, allow_null: bool, help_text: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {} if required else {"required": False}
    if allow_null:
        options["allow_null"] = True
    return options | ({"help_text": help_text} if help_text else {})


def _list(kind: Any, options: dict[str, Any]) -> Field:
    """Return the serializer field of a list."""
    item = kind.item_type
    if isinstance(item, inspect.StructType):
        return serializer_for(item.cls)(many=True, **options)
    return serializers.ListField(child=_field(item), **options)


_MAKERS: Mapping[type[inspect.Type], Callable[[Any, dict[str, Any]], Field]] = {
    inspect.BoolType: lambda kind, options: serializers.BooleanField(**options),
    inspect.IntType: lambda kind, options: serializers.IntegerField(**options),
    inspect.FloatType: lambda kind, options: serializers.FloatField(**options),
    inspect.StrType: lambda kind, options: serializers.CharField(**options),
    inspect.EnumType: lambda kind, options: serializers.ChoiceField(
        [one.value for one in kind.cls], **options
    ),
    inspect.LiteralType: lambda kind, options: serializers.ChoiceField(list(kind.values), **options),
    inspect.StructType: lambda kind, options: serializer_for(kind.cls)(**options),
    inspect.ListType: _list,
    inspect.DictType: lambda kind, options: serializers.DictField(child=_field(kind.value_type), **options),
    inspect.AnyType: lambda kind, options: serializers.JSONField(**options),
}
"""Functions that create a serializer field, by msgspec type."""
