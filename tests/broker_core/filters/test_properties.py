"""Laws of filters, on random trees and messages."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.errors import ClientError
from broker_core.filters import compile_filter
from broker_core.filters.compiler import compile_condition as compiled_test
from broker_core.filters.nodes import Node, format_node
from broker_core.filters.parser import parse
from broker_core.filters.selectors import MARK

from . import reference
from .strategies import messages, trees


@given(trees())
@settings(max_examples=300, deadline=None)
def test_a_printed_tree_parses_to_the_same_tree(tree: Node) -> None:
    assert parse(format_node(tree)) == tree


@given(trees(2), messages)
@settings(max_examples=400, deadline=None)
def test_the_compiled_filter_agrees_with_the_reference(tree: Node, message: Any) -> None:
    assert compiled_test(tree)(message) is reference.condition(tree, message)


@given(trees(2), messages)
@settings(max_examples=100, deadline=None)
def test_printing_and_json_change_no_verdict(tree: Node, message: Any) -> None:
    compiled = compile_filter(format_node(tree))
    assert compiled.matches_object(orjson.loads(orjson.dumps(message))) == reference.matches(tree, message)


def _assert_points_into(text: str, error: ClientError) -> None:
    assert error.code == ("bad_selector" if text.startswith(MARK) else "bad_filter")
    assert 1 <= error.details["column"] <= len(text) + 1


@given(st.text(st.characters(), max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_filter_or_an_error_with_a_column_in_it(text: str) -> None:
    try:
        compile_filter(text).matches_object({"a": [1, "x"]})
    except ClientError as error:
        _assert_points_into(text, error)


@given(
    st.lists(
        st.sampled_from(
            [
                "/a",
                "/b[0]",
                "1",
                "'x'",
                "(",
                ")",
                "AND",
                "NOT",
                "IN",
                "LIKE",
                "=",
                "-",
                "/",
                ",",
                "IS",
                "NULL",
                "BETWEEN",
                "%",
                "[/c d]",
            ]
        ),
        max_size=12,
    )
)
@settings(max_examples=300, deadline=None)
def test_any_row_of_tokens_is_a_filter_or_an_error_with_a_column_in_it(tokens: list[str]) -> None:
    text = " ".join(tokens)
    try:
        found = compile_filter(text)
    except ClientError as error:
        _assert_points_into(text, error)
    else:
        assert compile_filter(found.text) is found


def test_the_reference_tells_a_wrong_verdict() -> None:
    with pytest.raises(AssertionError):
        assert reference.condition(parse("/a = 1"), {"a": 2}) is True
