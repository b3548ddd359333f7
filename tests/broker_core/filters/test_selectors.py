"""Selectors over headers: results, errors, and no exception for any headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core import batch as batches
from broker_core import headers as record_headers
from broker_core.batch import Batch
from broker_core.errors import ClientError
from broker_core.filters import BatchEvaluator, compile_filter
from broker_core.filters.selectors import compile_selector, join_filter_text

HEADERS = {
    "color": "red",
    "weight": "10",
    "price": "2.50",
    "name": "it's",
    "flag": "TRUE",
    "off": "false",
    "empty": "",
    "version": "1.10",
    "path": "a_b%c",
    "type": "order",
    "$x": "1",
    "x-foo": "9",
    "under_score": "u",
}

TRUE = """
color = 'red'
color <> 'blue'
weight > 2
2 < weight
weight = 10.0
weight BETWEEN 5 AND 10
weight NOT BETWEEN 11 AND 20
price * 2 = 5
price + weight = 12.5
weight - 2 = 8
-weight < 0
- weight = -10
+weight = 10
17/4 = 4
-17/4 = -4
17.0/4 = 4.25
7 % 4 = 3
2 + 3 * 4 = 14
(2 + 3) * 4 = 20
10 - 3 - 2 = 5
0x10 = 16
010 = 8
1e2 = 100
.5 = 0.5
5. = 5
10L = 10
1.5F = 1.5d
name = 'it''s'
flag
flag = TRUE
NOT off
off = FALSE
flag AND NOT off
color = 'blue' OR weight = 10
color = 'red' OR absent = 1
NOT (color = 'blue')
not color = 'blue' and weight = 10
color IN ('blue', 'red')
color NOT IN ('blue')
weight IN (1, 10)
color LIKE 'r%'
color LIKE 'r_d'
color NOT LIKE 'b%'
path LIKE 'a!_b!%c' ESCAPE '!'
absent IS NULL
color IS NOT NULL
empty IS NOT NULL
empty = ''
version <> '1.1'
version <> ('1.1')
('1.10') = (version)
version IN (('1.10'))
color > 'blue'
JMSType = 'order'
$x = 1
color/*c*/='red' -- the end
hyphenated_props:x-foo = 9
convert_string_expressions:weight = 10
"color" = 'red'
TRUE
1 = 1 AND 2 = 2
(weight > 5) = TRUE
absent IS NULL AND color = 'red' OR FALSE
"""
NOT_TRUE = """
color = 'blue'
absent = 1
absent <> 1
NOT absent = 1
absent = other
absent <> other
absent LIKE '%'
absent NOT LIKE '%'
absent IN ('a')
absent NOT IN ('a')
absent BETWEEN 1 AND 2
color = 5
color <> 5
color < 5
color
NOT color
weight
1/0 = 1
weight / 0 = 0
color + 1 = 1
flag > TRUE
weight LIKE 1 IS NULL AND FALSE
FALSE
version = '1.1'
version = ('1.1')
(('1.1')) = version
version IN (('1.1'))
color = 'RED'
color LIKE 'r'
COLOR = 'red'
"""
REFUSED = [
    ("", 1),
    ("color =", 8),
    ("= 'red'", 1),
    ("color 'red'", 7),
    ("color = 'red", 9),
    ("(color = 'red'", 15),
    ("color = 'red')", 14),
    ("color LIKE red", 12),
    ("color LIKE 'a' ESCAPE 'bb'", 23),
    ("color LIKE 'a!' ESCAPE '!'", 12),
    ("color IN ()", 11),
    ("color IN 'red'", 10),
    ("weight BETWEEN 1", 17),
    ("color IS 1", 10),
    ("color NOT = 1", 11),
    ("weight # 1", 8),
    ("AND", 1),
    ("1x = 1", 1),
    ("0x = 1", 1),
    ("color == 'red'", 8),
    ("/* x", 1),
    ("a," * 3, 2),
    ("a != 1", 3),
]


@pytest.mark.parametrize("text", [line for line in TRUE.splitlines() if line])
def test_these_are_true_of_the_headers(text: str) -> None:
    assert compile_selector(text)(HEADERS) is True


@pytest.mark.parametrize("text", [line for line in NOT_TRUE.splitlines() if line and "LIKE 1" not in line])
def test_these_are_not(text: str) -> None:
    assert compile_selector(text)(HEADERS) is not True


@pytest.mark.parametrize(("text", "column"), REFUSED)
def test_what_is_no_selector_is_refused_with_its_column(text: str, column: int) -> None:
    with pytest.raises(ClientError) as refused:
        compile_selector(text)
    assert (refused.value.code, refused.value.details["column"]) == ("bad_selector", column)


def test_selectors_are_bounded() -> None:
    for text in ("x" * 4_097, "(" * 201, " OR ".join(["a"] * 101)):
        with pytest.raises(ClientError, match="more than"):
            compile_selector(text)
    assert compile_selector("(" * 99 + "TRUE" + ")" * 99)({}) is True
    assert compile_selector("NOT " * 198 + "TRUE")({}) is True


WORDS = st.sampled_from(
    [
        "a",
        "b",
        "1",
        "0",
        "2.5",
        "'x'",
        "'1'",
        "TRUE",
        "=",
        "<>",
        "<",
        ">",
        "+",
        "-",
        "*",
        "/",
        "%",
        "(",
        ")",
        ",",
        "AND",
        "OR",
        "NOT",
        "IS",
        "NULL",
        "IN",
        "LIKE",
        "BETWEEN",
        "ESCAPE",
        "'%'",
        "9999999999999999999",
        "1e308",
    ]
)
VALUES = st.one_of(
    st.text(max_size=6), st.sampled_from(["1", "-2", "1e400", "nan", "inf", "true", "9" * 18, "٣", "1_0"])
)


@given(st.lists(WORDS, max_size=12), st.dictionaries(st.sampled_from("ab"), VALUES))
def test_no_selector_and_no_headers_make_it_raise(words: list[str], headers: dict[str, str]) -> None:
    try:
        test = compile_selector(" ".join(words))
    except ClientError as error:
        assert error.code == "bad_selector"
        return
    assert test(headers) in (True, False, None)


def test_records_are_selected_by_headers_and_bodies() -> None:
    heads = [record_headers.encode({"n": str(number)}.items()) for number in range(6)]
    bodies = [b'{"n":%d}' % number for number in range(5)] + [b"no json"]
    batch = Batch.parse(batches.build_batch("p", ["a"] * 6, bodies, heads))
    evaluator = BatchEvaluator(batch, None)
    for selector, body_filter, rows in (
        ("n > 1", "", [2, 3, 4, 5]),
        ("n > 1", "/n < 4", [2, 3]),
        ("", "/n < 4", [0, 1, 2, 3]),
        ("x > 1", "/n < 4", []),
    ):
        assert evaluator.rows(compile_filter(join_filter_text(selector, body_filter))).tolist() == rows


def test_the_text_of_both_is_refused_where_either_is_wrong() -> None:
    for text, code in (
        (join_filter_text("n >", ""), "bad_selector"),
        (join_filter_text("n > 1", "/a ="), "bad_filter"),
    ):
        with pytest.raises(ClientError) as refused:
            compile_filter(text)
        assert refused.value.code == code


@given(st.text("ab%", max_size=8), st.text("ab", max_size=8))
def test_like_finds_what_its_pattern_means(pattern: str, text: str) -> None:
    def means(pattern: str, text: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "%":
            return any(means(pattern[1:], text[at:]) for at in range(len(text) + 1))
        return text[:1] == pattern[0] and means(pattern[1:], text[1:])

    for escaped in (pattern, pattern.replace("a", "_")):
        said = text.replace("a", "b") if escaped != pattern else text
        wanted = means(pattern, text) if escaped == pattern else means(escaped.replace("_", "b"), said)
        assert compile_selector(f"h LIKE '{escaped}'")({"h": said}) is wanted


def test_a_pattern_with_thousands_of_wildcards_is_found_piece_by_piece_or_refused() -> None:
    found = compile_selector("h LIKE '" + "%a" * 1_500 + "b'")
    assert found({"h": "a" * 15_000}) is False and found({"h": "a" * 15_000 + "b"}) is True
    with pytest.raises(ClientError, match="more than 256 letters"):
        compile_selector("h LIKE '" + "%_a_" * 900 + "b'")
    assert compile_selector("h LIKE '" + "_" * 3_000 + "'")({"h": "a" * 3_000}) is True
