"""Random filter trees and messages for the property tests of filters."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from broker_core.filters.nodes import (
    And,
    Arithmetic,
    Between,
    Comparison,
    Constant,
    FieldPath,
    InList,
    IsNull,
    LikeCondition,
    Node,
    Not,
    Or,
    UnaryMinus,
)

FIELDS = ("a", "b", "unit price", "größe")
TEXTS = ("", "x", "xy", "2", "10", " 2.0 ", "1e3", "it's", "nan", "5_0")
PATTERNS = ("x", "^x$", "^1", "0$", "x|y", "^[0-9]+$", "", "ä.")
COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")

numbers = st.one_of(
    st.integers(0, 3),
    st.integers(0, 2**64 - 1),
    st.floats(0, 10, width=16),
    st.floats(min_value=0, allow_nan=False, allow_infinity=False),
)
constants = st.one_of(
    numbers,
    st.sampled_from(TEXTS),
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.booleans(),
    st.none(),
).map(Constant)
names = st.one_of(
    st.sampled_from(FIELDS),
    st.text(st.characters(codec="utf-8", exclude_characters="]/"), min_size=1, max_size=4),
)
paths = st.builds(
    lambda first, rest: FieldPath((first, *rest)),
    names,
    st.lists(st.one_of(names, st.integers(0, 2)), max_size=2),
)


def trees(depth: int = 3) -> st.SearchStrategy[Node]:
    """Every kind of node, at most `depth` inside one another."""
    if depth == 0:
        return st.one_of(constants, paths)
    part = st.deferred(lambda: trees(depth - 1))
    several = st.lists(part, min_size=2, max_size=3).map(tuple)

    def chain(operators: str) -> st.SearchStrategy[Node]:
        rest = st.lists(st.tuples(st.sampled_from(operators), part), min_size=1, max_size=3).map(tuple)
        return st.builds(Arithmetic, part, rest)

    return st.one_of(
        constants,
        paths,
        st.builds(Comparison, st.sampled_from(COMPARISONS), part, part),
        chain("+-"),
        chain("*/%"),
        st.builds(UnaryMinus, part),
        st.builds(And, several),
        st.builds(Or, several),
        st.builds(Not, part),
        st.builds(InList, part, st.lists(part, min_size=1, max_size=4).map(tuple)),
        st.builds(Between, part, part, part),
        st.builds(LikeCondition, part, st.sampled_from(PATTERNS)),
        st.builds(IsNull, part),
    )


def _deeper(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(part, max_size=3),
        st.dictionaries(st.sampled_from(FIELDS), part, max_size=3),
    )


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(TEXTS),
)
messages = st.one_of(
    st.dictionaries(st.sampled_from(FIELDS), st.recursive(leaves, _deeper, max_leaves=6), max_size=4),
    st.recursive(leaves, _deeper, max_leaves=6),
)
