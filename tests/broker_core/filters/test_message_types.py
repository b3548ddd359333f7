"""Filters over FIX, NVFIX, MessagePack and binary bodies."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.batch import Batch, build_batch
from broker_core.config.instance import MESSAGE_TYPES
from broker_core.filters import BatchEvaluator, compile_filter
from broker_core.filters.message_types import UNREADABLE, decoder_for

ORDER = b"8=FIX.4.4\x0135=D\x0155=IBM\x0144=101.50\x0138=200\x0110=128\x01"
NAMED = b"Symbol=IBM\x01Price=101.50\x01Leg=A\x01Leg=B\x01"


def matches_filter(message_type: str, body: bytes, text: str, separator: str = "\x01") -> bool:
    batch = Batch.parse(build_batch("p", ["t"], [body]))
    evaluator = BatchEvaluator(batch, lambda topic: decoder_for(message_type, separator))
    return bool(len(evaluator.rows(compile_filter(text))))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/35 = 'D'", True),
        ("/35 = 'F'", False),
        ("/44 > 101", True),
        ("/44 > 102", False),
        ("/38 * /44 > 20000", True),
        ("/55 IN ('IBM', 'MSFT')", True),
        ("/55 LIKE '^I'", True),
        ("/99 IS NULL", True),
    ],
)
def test_fix_by_tag(text, expected):
    assert matches_filter("fix", ORDER, text) is expected


def test_nvfix_by_name_and_a_repeated_name_is_an_array():
    assert matches_filter("nvfix", NAMED, "/Symbol = 'IBM' AND /Price < 102")
    assert matches_filter("nvfix", NAMED, "/Leg = 'B'")
    assert not matches_filter("nvfix", NAMED, "/Leg = 'C'")


def test_another_separator():
    assert matches_filter("nvfix", b"Symbol=IBM|Price=7", "/Price = 7", "|")
    assert not matches_filter("nvfix", b"Symbol=IBM|Price=7", "/Price = 7")


def test_values_may_hold_an_equals_sign():
    assert matches_filter("fix", b"58=a=b\x01", "/58 = 'a=b'")


@pytest.mark.parametrize("body", [b"", b"\x01", b"no pairs", b"=1\x01", b"35=D\x01rest", b'{"35": "D"}'])
def test_what_is_not_fix_passes_nothing(body):
    assert not matches_filter("fix", body, "/35 = 'D'")
    assert not matches_filter("fix", body, "/35 IS NULL")


def test_latin_1_is_read_as_fix_has_it():
    assert matches_filter("fix", "58=Zürich\x01".encode("latin-1"), "/58 = 'Zürich'")
    assert matches_filter("fix", "58=Zürich\x01".encode(), "/58 = 'Zürich'")


def test_msgpack_is_read_like_json():
    body = msgspec.msgpack.encode({"order": {"px": 10, "legs": [{"id": 1}, {"id": 2}]}, "raw": b"\0"})
    assert matches_filter("msgpack", body, "/order/px > 5 AND /order/legs/id = 2")
    assert not matches_filter("msgpack", body, "/order/px > 50")
    assert not matches_filter("msgpack", body[:-1], "/order/px > 5")
    # Bytes, which JSON doesn't have, are base64.
    assert matches_filter("msgpack", body, "/raw = 'AA=='")


def test_binary_passes_no_filter():
    assert not matches_filter("binary", b'{"a": 1}', "/a = 1")
    assert not matches_filter("binary", b'{"a": 1}', "/a IS NULL")


def test_a_batch_of_several_types():
    bodies = [b'{"s": "IBM"}', b"s=IBM\x01", msgspec.msgpack.encode({"s": "IBM"}), b"s=IBM", b'{"s": "X"}']
    batch = Batch.parse(build_batch("p", ["json", "fix", "msgpack", "binary", "json"], bodies))
    types = {"fix": "fix", "msgpack": "msgpack", "binary": "binary"}
    evaluator = BatchEvaluator(batch, lambda topic: decoder_for(types.get(topic, "json")))
    assert evaluator.rows(compile_filter("/s = 'IBM'")).tolist() == [0, 1, 2]
    assert evaluator.rows(compile_filter("/s = 'X'")).tolist() == [4]


@given(st.binary(max_size=200), st.sampled_from(MESSAGE_TYPES[1:]))
def test_law_no_body_makes_a_decoder_or_a_filter_raise(body, message_type):
    decode = decoder_for(message_type)
    assert decode is not None
    decode(body)
    matches_filter(
        message_type, body, "/a = 1 OR /a/b LIKE 'x' OR /a + 1 > 2 OR /0 IS NULL OR /a IN ('1', 2)"
    )


def test_json_needs_no_decoder():
    assert decoder_for("json") is None
    assert decoder_for("binary")(b"{}") is UNREADABLE
