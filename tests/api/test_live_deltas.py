from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from api.live_deltas import apply, delta

VALUES = st.none() | st.integers(0, 3) | st.sampled_from(["live", "offlined"]) | st.lists(st.integers(0, 2), max_size=2)
STATUS = st.fixed_dictionaries({"revision": st.integers(1, 3), "rates": st.dictionaries(st.sampled_from("ab"), VALUES)})
CLIENTS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]), st.fixed_dictionaries({"lag": VALUES, "state": VALUES})
).map(lambda made: [{"name": name, **made[name]} for name in sorted(made)])
SNAPSHOTS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"at": st.integers(0, 9), "status": STATUS, "clients": CLIENTS}
)


@given(SNAPSHOTS, SNAPSHOTS)
def test_old_snapshot_and_delta_make_the_new_one(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert apply(old, delta(old, new)) == new


@given(SNAPSHOTS)
def test_nothing_changed_is_a_small_delta(snapshot: dict[str, Any]) -> None:
    assert delta(snapshot, snapshot) == {"at": snapshot["at"]}


def test_field_that_went_away_comes_as_null() -> None:
    old = {"at": 1, "status": {"x": 1}, "clients": [{"name": "a", "lag": 1}]}
    new = {"at": 2, "status": {}, "clients": [{"name": "a"}]}
    assert delta(old, new) == {"at": 2, "status": {"x": None}, "changed": [{"name": "a", "lag": None}]}
