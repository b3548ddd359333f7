"""The ranking: always the true largest, whatever grew and shrank, and cheap while nobody asks."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from broker_core.slow_clients.ranking import SMALLEST_BOUND, Ranking


@dataclass(eq=False)
class User:
    used: int = 0
    bound: int = 0


def bounded(user: User, bound: int) -> None:
    user.bound = bound


def ranking(*users: User) -> Ranking:
    made = Ranking(lambda user: user.used, bounded)  # type: ignore[arg-type, attr-defined, return-value]
    for user in users:
        made.enter(user)  # type: ignore[arg-type]
    return made


def use(made: Ranking, user: User, used: int) -> None:
    user.used = used
    if used > user.bound:
        made.enter(user)  # type: ignore[arg-type]


def test_nobody_who_uses_nothing_is_named() -> None:
    assert ranking(User(), User()).largest(2) == []


def test_growth_within_the_bound_makes_no_entry_and_is_still_seen() -> None:
    small, large = User(), User()
    made = ranking(small, large)
    use(made, large, SMALLEST_BOUND)
    use(made, small, 10)
    assert len(made._heap) == 2
    assert made.largest(2) == [large, small]


def test_the_largest_that_shrank_is_no_longer_the_largest() -> None:
    one, other = User(), User()
    made = ranking(one, other)
    use(made, one, 10**9)
    use(made, other, 10**6)
    assert made.largest(1) == [one]
    use(made, one, 5)
    assert made.largest(2) == [other, one]


def test_a_user_discarded_is_not_named_and_may_come_back() -> None:
    one, other = User(900), User(100)
    made = ranking(one, other)
    made.discard(one)  # type: ignore[arg-type]
    made.discard(one)  # type: ignore[arg-type]
    assert made.largest(2) == [other]
    made.enter(one)  # type: ignore[arg-type]
    assert made.largest(2) == [one, other]


def test_left_over_entries_stay_few() -> None:
    users = [User() for _ in range(10)]
    made = ranking(*users)
    for round_ in range(1_000):
        for user in users:
            use(made, user, round_ * SMALLEST_BOUND)
            made.largest(1)
    assert len(made._heap) <= 4 * len(users) + 65


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 10**7), st.sampled_from("uuuudaq")), max_size=80))
def test_it_agrees_with_sorting(steps: list[tuple[int, int, str]]) -> None:
    users = [User() for _ in range(8)]
    made, inside = ranking(*users), set(range(8))
    for number, used, what in steps:
        if what == "u" and number in inside:
            use(made, users[number], used)
        elif what == "d":
            made.discard(users[number])  # type: ignore[arg-type]
            inside.discard(number)
        elif what == "a" and number not in inside:
            made.enter(users[number])  # type: ignore[arg-type]
            inside.add(number)
        elif what == "q":
            expected = sorted((users[n].used for n in inside if users[n].used), reverse=True)[:2]
            assert [user.used for user in made.largest(2)] == expected
