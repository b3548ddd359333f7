"""The first record that each user's pins retain equals a full count, however pins are added, moved and
released.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.journal import pins
from broker_core.journal.open_segments import Pin, PinTable

NAMES = st.sampled_from(["a", "b", "c", "user:ann"])
USERS = st.sampled_from(["ann", "bob", ""])
PLACES = st.integers(0, 1 << 20)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), NAMES, PLACES),
        st.tuples(st.just("move"), st.integers(0, 40), PLACES),
        st.tuples(st.just("release"), st.integers(0, 40)),
        st.tuples(st.just("belongs"), NAMES, USERS),
        st.tuples(st.just("ask"), USERS),
    ),
    max_size=60,
)


def count_pins(pins: list[Pin], whose: dict[str, str], user: str) -> int | None:
    return min((pin.sequence for pin in pins if whose.get(pin.holder, "") == user), default=None)


@settings(max_examples=200)
@given(STEPS)
def test_the_first_record_that_a_user_holds_is_what_counting_everything_says(
    steps: list[tuple[Any, ...]],
) -> None:
    pins, whose, made = PinTable(), dict[str, str](), list[Pin]()
    pins.add(0, "spool of a")  # nobody's
    pins.set_user_lookup(lambda name: whose.get(name, ""))
    for step, *of in steps:
        if step == "add":
            made.append(pins.add(of[1], "replay", of[0]))
        elif step == "belongs":
            whose[of[0]] = of[1]
            pins.set_user(*of)
        elif step == "ask":
            assert pins.first_pinned_by(of[0]) == count_pins(made, whose, of[0])
        elif made and step == "move":
            made[of[0] % len(made)].move(of[1])
        elif made:
            made.pop(of[0] % len(made)).release()
    assert [pins.first_pinned_by(user) for user in ("ann", "bob", "")] == [
        count_pins(made, whose, user) for user in ("ann", "bob", "")
    ]
    for pin in made:
        pin.release()
        pin.release()
    assert {pins.first_pinned_by(user) for user in ("ann", "bob", "")} == {None}


def test_pins_that_come_and_go_behind_one_that_stays_leave_nothing() -> None:
    table = PinTable()
    table.add(1, "durable subscription", "a")
    for number in range(2, 1_000):
        table.set_user("a", "ann" if number % 2 else "bob")
        table.add(number, "replay", "a").release()
        assert (table.first_pinned_by("ann"), table.first_pinned_by("bob")) == (
            (1, None) if number % 2 else (None, 1)
        )
        entries = [entry for heap in table._holdings._heaps.values() for entry in heap]
        assert len(entries) <= 2 + pins.SLACK
    stays = [table.add(7, "replay", "b") for _ in range(100)]
    for number in range(1_000):
        table.add(number + 8, "replay", "b").release()
    assert len(table._holdings._heaps["b"]) <= 2 * len(stays) + 2 + pins.SLACK
