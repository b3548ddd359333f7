"""FilterIndex: finds every filter that a message passes, by its content, and few others."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.filters import Filter, compile_filter
from broker_core.filters.index_keys import Guard, required_key
from broker_core.filters.message_types import UNREADABLE
from broker_core.filters.nodes import And, Between, Comparison, FieldPath, InList, format_node
from broker_core.filters.parser import parse
from broker_core.subscriptions.filter_index import FilterIndex
from tests.broker_core.filters.strategies import constants, messages, paths, trees

fields = st.one_of(st.sampled_from(["a", "b"]).map(lambda name: FieldPath((name,))), paths)
guarded = st.one_of(
    st.builds(Comparison, st.sampled_from(["=", "<", "<=", ">", ">="]), fields, constants),
    st.builds(Comparison, st.sampled_from(["=", "<", "<=", ">", ">="]), constants, fields),
    st.builds(Between, fields, constants, constants),
    st.builds(InList, fields, st.lists(constants, min_size=1, max_size=3).map(tuple)),
)
filters = st.one_of(guarded, st.tuples(guarded, trees(1)).map(And), trees(2)).map(
    lambda tree: compile_filter(format_node(tree))
)


@given(st.lists(filters, max_size=8, unique=True), st.lists(messages, max_size=4), st.integers(0, 8))
@settings(max_examples=300, deadline=None)
def test_what_passes_is_found_whatever_it_is(chosen: list[Filter], some: list[Any], leave: int) -> None:
    some = [orjson.loads(orjson.dumps(message)) for message in some]
    index = FilterIndex()
    for one in chosen:
        index.add(one)
    for one in chosen[:leave]:
        index.remove(one)
    found = index.candidates([(-1, UNREADABLE), *enumerate(some)])
    assert not set(found) & set(chosen[:leave]) and -1 not in {row for rows in found.values() for row in rows}
    for one in chosen[leave:]:
        passed = [row for row, message in enumerate(some) if one.matches_object(message)]
        if one not in index.unguarded:
            rows = [int(row) for row in found.get(one, ())]
            assert set(passed) <= set(rows)
            assert rows == sorted(set(rows))
    for one in chosen[leave:]:
        index.remove(one)
    assert (
        index.candidates(enumerate(some)) == {}
        and not index.unguarded
        and not index._by_keys
        and not index._by_limit
    )


def test_only_those_that_name_what_a_message_holds_are_tried() -> None:
    index = FilterIndex()
    for number in range(1_000):
        index.add(compile_filter(f"/account = 'A-{number}' AND /price > {number}"))
    found = index.candidates(
        [(0, {"account": "A-7", "price": 1}), (1, {"account": "A-9"}), (2, {"account": ["A-7"]})]
    )
    assert {one.text: rows for one, rows in found.items()} == {
        "/account = 'A-7' AND /price > 7": [0, 2],
        "/account = 'A-9' AND /price > 9": [1],
    }


def test_limits_leave_out_who_is_not_reached_by_any_message() -> None:
    index = FilterIndex()
    for number in range(1_000):
        index.add(compile_filter(f"/price > {number}"))
        index.add(compile_filter(f"/price <= -{number} AND /size > 0"))
    found = index.candidates(
        enumerate([{"price": 3.5}, {"price": "2"}, {"price": -1}, {"price": None}, {"price": {}}])
    )
    assert {one.text: [int(row) for row in rows] for one, rows in found.items()} == {
        "/price > 0": [0, 1],
        "/price > 1": [0, 1],
        "/price > 2": [0, 1],
        "/price > 3": [0],
    }
    below = compile_filter("/price < 9007199254740993")
    index.add(below)
    assert below in index.candidates([(0, {"price": 9007199254740992})]), "as floating point they are equal"
    for never in ("nan", "", []):
        assert not any(one is below for one in index.candidates([(0, {"price": never})]))


def test_the_guard_is_the_part_that_leaves_the_fewest() -> None:
    def guard(text: str) -> Guard | None:
        return required_key(parse(text))

    assert guard("/a IN ('x', 'y') AND /b = 2 AND /c > 1") == (("b",), (2,))
    assert guard("/a = NULL") == (("a",), ()), "it is never TRUE"
    assert guard("'x' = /a/b[0]") == (("a", "b", 0), ("x",))
    assert guard("5 >= /a AND /b = 1") == (("b",), (1,))
    assert guard("5 >= /a") == (("a",), False, 5.0)
    assert guard("/a BETWEEN 2 AND /b") == (("a",), True, 2.0)
    for text in ("/a = /b", "/a = 1 OR /b = 2", "NOT /a = 1", "/a != 1", "/a + 1 = 2"):
        assert guard(text) is None
