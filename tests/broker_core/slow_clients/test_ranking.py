"""The ranking: always the true largest, whatever grew and shrank, and cheap while nobody asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from broker_core.slow_clients.ranking import SLACK, Ranking


@dataclass(eq=False)
class User:
    used: int = 0
    bound: int = 0
    oldest_at: int = 0
    connected: int = field(default_factory=count(1).__next__)

    @property
    def backlog(self) -> User:
        return self


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
    use(made, large, SLACK)
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
            use(made, user, round_ * SLACK)
            made.largest(1)
    assert len(made._heap) <= 4 * len(users) + 65


def test_of_equals_the_older_backlog_comes_first_then_the_earlier_connection() -> None:
    users = [User(oldest_at=9), User(oldest_at=5), User(oldest_at=5), User(oldest_at=7)]
    made = ranking(*users)
    for user in users:
        use(made, user, 10**6)
    assert made.largest(4) == [users[1], users[2], users[3], users[0]]
    users[1].oldest_at = 8
    assert made.largest(4) == [users[2], users[3], users[1], users[0]], "it has drained a little"


def test_a_crowd_of_equals_is_ranked_at_once() -> None:
    users = [User(oldest_at=5) for _ in range(2_000)]
    made = ranking(*users)
    for user in users:
        use(made, user, 70_000)
    users[1_234].oldest_at = 3
    assert made.largest(2) == [users[1_234], users[0]]
    assert len(made._heap) == 2_000 and all(user.bound == 70_000 for user in users)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 10**7), st.sampled_from("uuuudaq")), max_size=80))
def test_it_agrees_with_sorting(steps: list[tuple[int, int, str]]) -> None:
    users = [User() for _ in range(8)]
    made, inside = ranking(*users), set(range(8))
    for moment, (number, used, what) in enumerate(steps):
        if what == "u" and number in inside:
            users[number].oldest_at = moment if users[number].used == 0 else users[number].oldest_at
            use(made, users[number], used % 3 * 100_000 if used % 2 else used)
        elif what == "d":
            made.discard(users[number])  # type: ignore[arg-type]
            inside.discard(number)
        elif what == "a" and number not in inside:
            made.enter(users[number])  # type: ignore[arg-type]
            inside.add(number)
        elif what == "q":
            holding = [users[n] for n in inside if users[n].used]
            expected = sorted(holding, key=lambda user: (-user.used, user.oldest_at, user.connected))[:2]
            assert made.largest(2) == expected
