"""Every bound of a field holds on both sides, and its error states the accepted values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from broker_core.errors import ClientError
from broker_core.protocols import commands
from broker_core.protocols.commands import parse_command
from broker_core.protocols.field_info import _strip_annotations, get_tag, list_fields, list_structs

USUAL: dict[str, dict[str, Any]] = {
    "logon": {"name": "a"},
    "publish": {"topic": "a", "data": 1},
    "subscribe": {
        "id": "s",
        "topic": "a",
        "bookmark": "0",
        "rate": "2X",
        "conflation": "1s",
        "managed": "m",
        "ack": "auto",
    },
    "unsubscribe": {"id": "s"},
    "heartbeat": {},
    "flush": {"id": "f"},
    "pause": {"ids": ["s"]},
    "resume": {"ids": ["s"]},
    "rate": {"ids": ["s"], "rate": "2X"},
    "ack": {"id": "s"},
    "told": {"decision": "d"},
    "renew": {"id": "s"},
    "credit": {"id": "s", "upto": 1},
    "skip": {"sequence": 1},
}
"""A valid command of each type, with the fields that its options require."""


def _sides(bare: inspect.Type) -> Iterator[tuple[Any, bool]]:
    """Values at a type's bounds, and whether they are within."""
    if isinstance(bare, inspect.IntType):
        for edge, step in ((bare.ge, -1), (bare.le, 1)):
            if edge is not None:
                yield edge, True
                yield edge + step, False
        yield "1", False
    elif isinstance(bare, inspect.StrType) and bare.pattern is None:
        for length, step in ((bare.min_length, -1), (bare.max_length, 1)):
            if length is not None:
                yield "a" * length, True
                yield "a" * (length + step), False
        yield 1, False
    elif isinstance(bare, inspect.StrType):
        yield from (
            ("a", True),
            ("A.b_c-9" * 9, True),
            ("", False),
            ("a" * 65, False),
            ("a b", False),
            ("a\n", False),
            ("é", False),
        )
    elif isinstance(bare, inspect.LiteralType):
        yield from ((value, True) for value in bare.values)
        yield "weather", False
    elif isinstance(bare, inspect.BoolType):
        yield from ((True, True), (0, False))
    elif isinstance(bare, inspect.ListType):
        inner = _strip_annotations(bare.item_type)[0]
        item: Any = inner.values[0] if isinstance(inner, inspect.LiteralType) else [1, 2]
        if isinstance(inner, inspect.StrType):
            item = "a"
        for length, step in ((bare.min_length, -1), (bare.max_length, 1)):
            if length:
                yield [item] * length, True
                yield [item] * (length + step), False
        yield item, False


def _cases() -> Iterator[Any]:
    for kind in list_structs(commands.Command):
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        for field in info.fields:
            for value, within in _sides(_strip_annotations(field.type)[0]):
                shown = str(value)[:12]
                yield pytest.param(
                    get_tag(kind), field.name, value, within, id=f"{get_tag(kind)}.{field.name}={shown}"
                )


CASES = list(_cases())


@pytest.mark.parametrize(("command", "field", "value", "within"), CASES)
def test_a_bound_holds_on_both_sides(command: str, field: str, value: Any, within: bool) -> None:
    payload = msgspec.json.encode({"c": command, **USUAL[command], field: value})
    try:
        parse_command(payload)
    except ClientError as error:
        told = (error.code, str(error.details["field"]).partition("[")[0])
        if within:
            # What the type allows may still not go with the other fields, or not be a name.
            assert (command, field) in RELATED or told[0] != "bad_command", error
        else:
            assert (
                told == ("bad_command", field)
                and error.fix == f"{field}: {list_fields(_kind(command))[field].accepted_values()}."
            )
    else:
        assert within


RELATED = {
    ("logon", "version"),
    ("subscribe", "bookmark"),
    ("subscribe", "durability"),
    ("subscribe", "shared"),
    ("subscribe", "max_deliveries"),
    ("publish", "text"),
    ("publish", "data"),
    ("ack", "numbers"),
    ("ack", "upto"),
    ("ack", "bookmark"),
    ("ack", "id"),
}


def _kind(command: str) -> type[msgspec.Struct]:
    return next(kind for kind in list_structs(commands.Command) if get_tag(kind) == command)


def test_every_command_is_tried() -> None:
    assert set(USUAL) == set(commands.NAMES)
    assert len(CASES) > 120


def test_a_wrong_name_is_explained_in_the_error() -> None:
    with pytest.raises(ClientError) as caught:
        parse_command(b'{"c":"subscribe","id":"s","topic":"a","durable":"a b"}')
    assert (
        caught.value.sentence
        == "subscribe: durable isn't text, 1 to 64 of A-Z a-z 0-9 _ . -, not dots alone."
    )
