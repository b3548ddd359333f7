"""Numbers are compared exactly, and a value that can't be compared affects only tests of that value."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from broker_core.batch import Batch, build_batch
from broker_core.filters import BatchEvaluator, compile_filter
from broker_core.filters.message_types import MAX_DEEP_BODY, UNREADABLE, decode_json
from broker_core.filters.selectors import compile_selector
from broker_core.subscriptions.keys import parse_key

SELECTED = [
    ("w=1234567890123456789", "w = 1234567890123456789", True),
    ("w=1234567890123456790", "w = 1234567890123456789", False),
    ("w=9223372036854775807", "w > 9223372036854775806", True),
    ("w=-999999999999999999", "w = -999999999999999999", True),
    (
        "w=1234567890123456788",
        "w <> 1234567890123456789 AND w BETWEEN 1234567890123456700 AND 1234567890123456800",
        True,
    ),
    ("w=1234567890123456789.0", "w = 1234567890123456789", True),
    ("w=0.1", "w = 0.10", True),
    ("w=-9223372036854775808", "w < -9223372036854775807", True),
    ("w=+1234567890123456789", "w = 1234567890123456789", True),
    ("w=123456789012345678901234567890", "w = 123456789012345678901234567891", False),
    ("w=1234567890123456789.5", "w > 1234567890123456789", True),
    ("w=1e400", "w < 1e401", True),
    ("w=9223372036854775807", "w + 1 = 9223372036854775808", True),
    ("w=1234567890123456789", "w % 10 = 9 AND w - 1 = 1234567890123456788", True),
    ("w=-7", "w % 4 = -3 AND w / 2 = -3", True),
    ("w=7", "w % 0 = 1 OR w / 0 = 1 OR w / 0.0 = 1", None),
    ("w=1e999999", "w * w > 1", None),
    ("w=1e99999999999999999999999", "w > 1", None),
    ("w=0x7fffffffffffffff", "0x7fffffffffffffff = 9223372036854775807", True),
]


@pytest.mark.parametrize(("header", "selector", "selected"), SELECTED)
def test_selectors_compare_numbers_exactly(header: str, selector: str, selected: bool | None) -> None:
    name, _, value = header.partition("=")
    assert (compile_selector(selector)({name: value}) is True) is (selected is True)


BODIES = [
    ('{"id":7,"v":1e400}', True),
    ('{"id":7,"v":-1e400,"w":[1e999]}', True),
    ('{"id":7,"v":' + "9" * 400 + "}", True),
    ('{"id":7,"v":' + "9" * 5_000 + "}", True),
    ('{"id":7,"v":"\\ud83d"}', True),
    ('{"id":7,"\\udc00":1}', True),
    ('{"id":7,"v":' + "[" * 2_000 + "]" * 2_000 + "}", True),
    ('{"v":' + '{"a":[' * 2_000 + "]}" * 2_000 + ',"id":7}', True),
    ('{"v":' + "[" * 2_000 + '"]]]\\"]"' + "]" * 2_000 + ',"u":1e400,"id":7}', True),
    ('{"id":7,', False),
    ('{"id":7,"v":NaN,"w":1e400}', False),
    ('{"id":7,"v":1e400', False),
    ('{"id":7,"v":' + "[" * 2_000 + "]" * 1_999 + "}", False),
    ('{"id":7,"v":"\udfff"}', False),
]


@pytest.mark.parametrize(("body", "matches"), BODIES, ids=[str(number) for number in range(len(BODIES))])
@pytest.mark.parametrize("filter", ["/id = 7", "/id = 7 AND (/v = 5 OR /id > 6)", "/id + 1 = 8"])
def test_a_value_that_cannot_be_compared_affects_only_its_own_tests(
    body: str, matches: bool, filter: str
) -> None:
    raw = body.encode(errors="surrogatepass")
    batch = Batch.parse(build_batch("p", ["t"] * 2, [raw, b'{"id":7}']))
    rows = BatchEvaluator(batch, None).rows(compile_filter(filter)).tolist()
    assert rows == ([0, 1] if matches else [1])


@pytest.mark.parametrize("value", ["1e400", "9" * 400, "[" * 2_000 + "]" * 2_000])
@pytest.mark.parametrize(
    "condition", ["/v > 5", "/v < 5", "/v = /v", "/v + 1 > 0", "/v LIKE 'a'", "/v IN (1, 2)"]
)
def test_tests_of_an_incomparable_value_are_not_true(value: str, condition: str) -> None:
    test = compile_filter(condition).test
    assert test is not None
    if value[0] != "[" or condition != "/v = /v":
        assert test(decode_json(f'{{"v":{value}}}'.encode())) is not True


def test_incomparable_values_are_no_keys() -> None:
    key_of = parse_key("/v").key_of_record(None)
    for value in ("1e400", "9" * 400, '"\\ud83d"', "[" * 2_000 + "]" * 2_000):
        assert key_of("t", f'{{"v":{value}}}'.encode()) is None


def test_other_values_of_such_a_body_are_as_in_any_other() -> None:
    body = b'{"a":[1,-2.5,18446744073709551615,18446744073709551616,"\\u00e9",null,true,{}],"b":1e400}'
    plain: Any = orjson.loads(body.replace(b"1e400", b"0"))
    found = decode_json(body)
    assert found["a"] == plain["a"] and list(map(type, found["a"])) == list(map(type, plain["a"]))


def test_deep_bodies_have_a_limit_of_bytes() -> None:
    body = b'{"id":7,"v":' + b"[" * 2_000 + b"1," * MAX_DEEP_BODY + b"1" + b"]" * 2_000 + b"}"
    assert decode_json(body) is UNREADABLE
    worst = b"[" * 2_000 + b"[]," * (MAX_DEEP_BODY // 3 - 2_000) + b"1" + b"]" * 2_000
    assert decode_json(worst) is not UNREADABLE


def test_texts_of_bodies_are_exact_integers_too() -> None:
    test = compile_filter("/w = 1234567890123456789").test
    assert test is not None
    assert test({"w": "1234567890123456789.0"}) is True and test({"w": "1234567890123456790"}) is False
    assert test({"w": 1234567890123456789}) is True and test({"w": 1234567890123456790}) is False
