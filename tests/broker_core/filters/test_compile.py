"""compile_filter: limits, errors, sharing, and values that try to break it."""

from __future__ import annotations

from typing import Any

import pytest

from broker_core.errors import ClientError
from broker_core.filters import compile_filter
from broker_core.filters.parser import MAX_NESTING, MAX_PATTERNS
from broker_core.filters.tokens import MAX_FILTER_TEXT, MAX_STEPS


def column_of(text: str) -> int:
    with pytest.raises(ClientError) as caught:
        compile_filter(text)
    assert caught.value.code == "bad_filter"
    assert caught.value.fix
    return int(caught.value.details["column"])


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("", 1),
        ("   ", 1),
        ("/a = ", 6),
        ("/a == = 1", 7),
        ("carrier = 'UA'", 1),
        ("/a = 'open", 6),
        ("/a IN ()", 8),
        ("/a IN (1, 2", 12),
        ("/a IN 1", 7),
        ("/a NOT = 1", 8),
        ("/a IS 1", 7),
        ("/a BETWEEN 1 OR 2", 14),
        ("/a LIKE /b", 9),
        ("/a LIKE '('", 9),
        ("(/a = 1", 8),
        ("/a = 1)", 7),
        ("/a[-1] = 1", 3),
        ("/a[1 = 1", 3),
        ("[/] = 1", 1),
        ("[/a//b] = 1", 1),
        ("[/a = 1", 1),
        ("/a = 1.5.2", 6),
        ("/a = 12abc", 6),
        ("/a = 1e", 7),
        ("/a = 1e999", 6),
        ("/a ; DROP", 4),
        ("/a && /b", 4),
        ("__import__('os')", 1),
        ("/a = 'x' /b", 10),
        ("/a = '\ud800'", 7),
    ],
)
def test_an_error_names_its_column(text: str, column: int) -> None:
    assert column_of(text) == column


def test_a_filter_at_the_limit_of_length_is_taken_and_one_longer_is_not() -> None:
    text = "/a = '" + "x" * (MAX_FILTER_TEXT - 7) + "'"
    assert len(text) == MAX_FILTER_TEXT
    compile_filter(text)
    assert column_of(text + " ") == MAX_FILTER_TEXT + 1


@pytest.mark.parametrize(("opening", "closing"), [("(", ")"), ("NOT ", ""), ("-", ""), ("(-", ")")])
def test_nesting_ends_at_the_limit(opening: str, closing: str) -> None:
    depth = MAX_NESTING // opening.count("(") // 2 if opening == "(-" else MAX_NESTING
    compile_filter(opening * depth + "/a" + closing * depth).matches_object({"a": 1})
    assert column_of(opening * (depth + 1) + "/a" + closing * (depth + 1)) > depth * len(opening)


@pytest.mark.parametrize("joint", [" AND ", " OR ", " + ", " * "])
def test_a_long_chain_is_no_deep_tree(joint: str) -> None:
    found = compile_filter(joint.join(["/a"] * 500))
    assert found.matches_object({"a": 1})
    assert not found.matches_object({"a": "no number"})


def test_too_many_steps_and_too_many_patterns_are_refused() -> None:
    compile_filter("/a" * MAX_STEPS)
    assert column_of("/a" * (MAX_STEPS + 1)) == 1
    compile_filter(" OR ".join(["/a LIKE 'x.'"] * MAX_PATTERNS))
    assert column_of(" OR ".join(["/a LIKE 'x.'"] * (MAX_PATTERNS + 1))) == MAX_PATTERNS * 16 + 9


def test_filters_that_say_the_same_share_one_object() -> None:
    one = compile_filter("/a = 1 and not ( /b = 2 )")
    assert one.text == "/a = 1 AND NOT /b = 2"
    assert compile_filter("/a==1   AND (NOT /b = 2)") is one
    assert compile_filter(one.text) is one
    assert compile_filter("/a = 1.0 AND NOT /b = 2") is not one


@pytest.mark.parametrize(
    "message", [None, True, 7, 1.5, "text", [], {}, [[]], [None], {"a": {}}, {"a": [{}]}]
)
@pytest.mark.parametrize(
    "text",
    [
        "/a = 1",
        "/a/b[0] < 'x'",
        "/a + /b * -/c / 0 % 0 > 1",
        "/a LIKE 'x.'",
        "/a IN (1, 'x', /b)",
        "/a = /b",
        "/a BETWEEN /b AND /c",
        "/a",
        "NOT /a",
        "/a = TRUE",
        "/a > 'x' OR /a < 1",
    ],
)
def test_no_message_makes_a_filter_raise_or_match_what_is_not_there(text: str, message: Any) -> None:
    assert compile_filter(text).matches_object(message) is False


def test_absence_is_found_in_any_message_that_is_json() -> None:
    absent = compile_filter("/a IS NULL")
    messages: list[Any] = [None, 5, "a", [], {}, {"a": None}, {"a": ""}, {"a": []}, {"a": [None, 1]}]
    for message in messages:
        assert absent.matches_object(message)
    assert not absent.matches_object({"a": 0})
    assert not absent.matches_object({"a": False})


@pytest.mark.parametrize(
    ("sign", "below", "same", "above"),
    [
        ("<", False, False, True),
        ("<=", False, True, True),
        (">", True, False, False),
        (">=", True, True, False),
        ("=", False, True, False),
        ("!=", True, False, True),
    ],
)
def test_a_literal_may_stand_on_the_left(sign: str, below: bool, same: bool, above: bool) -> None:
    for literal, values in (("5", (4, 5, 6)), ("'m'", ("l", "m", "n"))):
        found = compile_filter(f"{literal} {sign} /a")
        assert [found.matches_object({"a": value}) for value in values] == [below, same, above]


def test_whole_numbers_compare_exactly_and_huge_products_stay_small() -> None:
    assert compile_filter("/a = 9007199254740993").matches_object({"a": 2**53 + 1})
    assert not compile_filter("/a = 9007199254740993").matches_object({"a": 2**53})
    assert compile_filter(" * ".join(["/a"] * 16) + " > 1e300").matches_object({"a": 2**63})
    overflow = compile_filter(" * ".join(["/a"] * 100) + " IS NULL")
    assert overflow.matches_object({"a": 2**63})


@pytest.mark.parametrize("text", ["nan", "inf", "1_0", "0x10", "٣", "1" * 65, "1e999", "--1"])
def test_a_text_that_is_no_decimal_number_is_greater_than_any_number(text: str) -> None:
    assert compile_filter("/a > 1e308").matches_object({"a": text})
    assert not compile_filter("/a = 10").matches_object({"a": text})


def test_two_long_arrays_compare_in_linear_time() -> None:
    # Pair by pair this would be 10^9 comparisons.
    message: Any = {"a": list(range(40_000)), "b": [str(number) for number in range(40_000, 80_000)]}
    assert not compile_filter("/a = /b").matches_object(message)
    assert not compile_filter("/a > /b").matches_object(message)
    assert compile_filter("/a < /b").matches_object(message)


def test_an_array_nested_to_the_limit_of_json_is_walked_without_recursion() -> None:
    nested: Any = [7]
    for _ in range(50_000):
        nested = [nested]
    message = {"a": nested}
    assert compile_filter("/a = 7").matches_object(message)
    assert compile_filter("/a + 1 = 8").matches_object(message)
    assert not compile_filter("/a/b = 7").matches_object(message)
    while isinstance(nested, list):  # taken apart by hand: the interpreter's own way down would be recursion
        nested = nested.pop()


def test_a_pattern_that_stalls_backtracking_engines_does_not_stall_this_one() -> None:
    assert not compile_filter("/a LIKE '^(a+)+$'").matches_object({"a": "a" * 50_000 + "b"})


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("^$", "x", False),
        ("^x$", "x", True),
        ("^x$", "x\n", False),
        ("x$", "ax", True),
        ("^x", "ax", False),
        ("", "x", True),
        ("a.c", "a\nc", False),
        ("(?s)a.c", "a\nc", True),
        ("ß", "groß", True),
        ("^gr..$", "groß", True),
    ],
)
def test_like_finds_plain_text_as_an_expression_would(pattern: str, text: str, found: bool) -> None:
    assert compile_filter(f"/a LIKE '{pattern}'").matches_object({"a": text}) is found
