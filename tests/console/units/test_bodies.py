"""Message bodies on pages: formatted by content, truncated, and never executed or guessed."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from broker_core.documents.journals import BrowsedMessage
from console.units.bodies import MAX_FIELDS, MAX_HEX, MAX_SHOWN, PREVIEW, hex_dump, view_body


def message(**body: Any) -> BrowsedMessage:
    return BrowsedMessage(bookmark="i|1|", topic="t", destination="", at=0, bytes=1, **body)


def packed(value: Any) -> str:
    return base64.b64encode(msgspec.msgpack.encode(value)).decode()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"data": {"a": [1, None]}}, "JSON"),
        ({"data": None}, "JSON"),
        ({"text": "8=FIX.4.2\x0135=D\x01"}, "FIX"),
        ({"text": "Symbol=IBM\x01Side=Buy\x01"}, "NVFIX"),
        ({"text": "a\x01b=1\x01"}, "text"),
        ({"text": "a=b"}, "text"),
        ({"text": ""}, "text"),
        ({"base64": packed({"qty": 200, "note": b"\xff"})}, "MessagePack"),
        ({"base64": base64.b64encode(b"\xff\xfe").decode()}, "bytes"),
    ],
    ids=lambda one: str(one)[:24],
)
def test_a_body_is_read_by_its_shape(body: dict[str, Any], kind: str) -> None:
    assert view_body(message(**body)).kind == kind


def test_fields_of_fix_have_their_names_and_values() -> None:
    fields = view_body(message(text="35=D\x0155=IBM\x019999=x=y\x01")).fields
    assert [tuple(field) for field in fields] == [
        ("35", "MsgType", "D"),
        ("55", "Symbol", "IBM"),
        ("9999", "", "x=y"),
    ]


def test_what_a_page_gets_is_bounded() -> None:
    long = view_body(message(data=["x" * 100] * 1_000))
    assert len(long.pretty) == MAX_SHOWN and long.cut > 0 and len(long.preview) == PREVIEW
    many = view_body(message(text="".join(f"{n}=v\x01" for n in range(1_000))))
    assert len(many.fields) == MAX_FIELDS and many.cut == 1_000 - MAX_FIELDS
    raw = view_body(message(base64=base64.b64encode(b"\xff" * 5_000).decode()))
    assert raw.hexadecimal.count("\n") == MAX_HEX // 16 - 1 and raw.cut == 5_000 - MAX_HEX


def test_hexadecimal_says_where_which_and_as_text() -> None:
    assert hex_dump(b"GET /\x00") == "000000  47 45 54 20 2f 00                                 GET /·"
    assert hex_dump(b"") == ""
