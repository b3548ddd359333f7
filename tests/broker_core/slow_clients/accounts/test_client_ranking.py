"""The ranking always yields the largest client, and costs little while it is not read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.slow_clients.accounts import pools as ranking_module
from broker_core.slow_clients.accounts.pools import RANKING_CALLS, UsageRanking
from broker_core.slow_clients.rules.rule import UNLIMITED


@dataclass(eq=False)
class RankedUsage:
    memory: int = 0
    bound: int = 0
    oldest_at: int = 0
    connection_number: int = field(default_factory=count(1).__next__)

    @property
    def backlog(self) -> RankedUsage:
        return self


def bounded(user: RankedUsage, bound: int) -> None:
    user.bound = bound


def ranking(*users: RankedUsage) -> UsageRanking:
    made = UsageRanking(lambda user: user.memory, bounded)  # type: ignore[arg-type, attr-defined, return-value]
    for user in users:
        made.add(user)  # type: ignore[arg-type]
    return made


def use(made: UsageRanking, user: RankedUsage, used: int, ranked: bool = True) -> None:
    user.memory = used
    if ranked and used > user.bound:
        made.add(user)  # type: ignore[arg-type]


def test_a_client_without_usage_is_never_ranked() -> None:
    assert ranking(RankedUsage(), RankedUsage()).largest(2) == []


def test_while_nobody_asks_growth_is_noted_once() -> None:
    small, large = RankedUsage(), RankedUsage()
    made = ranking(small, large)
    assert large.bound == UNLIMITED
    use(made, large, 10**9)
    use(made, small, 10)
    assert made.largest(2) == [large, small]
    assert (large.bound, small.bound) == (10**9, 10)
    made.stop_ranking()
    use(made, small, 20)
    assert small.bound == UNLIMITED
    use(made, small, 10**9 + 1)
    assert made.largest(2) == [small, large]


def test_prepared_in_time_a_question_ranks_nobody() -> None:
    users = [RankedUsage(used) for used in range(1, 101)]
    made = ranking(*users)
    made.rank_some()
    ranked = [user for user in users if user.bound < UNLIMITED]
    assert len(ranked) == 100 // RANKING_CALLS + 1, "no call takes long"
    for _ in range(RANKING_CALLS):
        made.rank_some()
    assert all(user.bound == user.memory for user in users)
    use(made, users[7], 900)
    assert users[7].bound == 900, "who grows is ranked at once"
    assert made.largest(2) == [users[7], users[99]]


def test_the_largest_that_shrank_is_no_longer_the_largest() -> None:
    one, other = RankedUsage(), RankedUsage()
    made = ranking(one, other)
    use(made, one, 10**9)
    use(made, other, 10**6)
    assert made.largest(1) == [one]
    use(made, one, 5)
    assert made.largest(2) == [other, one]


def test_a_user_discarded_is_not_named_and_may_come_back() -> None:
    one, other = RankedUsage(900), RankedUsage(100)
    made = ranking(one, other)
    made.discard(one)  # type: ignore[arg-type]
    made.discard(one)  # type: ignore[arg-type]
    assert made.largest(2) == [other]
    made.add(one)  # type: ignore[arg-type]
    assert made.largest(2) == [one, other]


@pytest.mark.parametrize("asked", [True, False])
def test_left_over_entries_stay_few(asked: bool) -> None:
    users = [RankedUsage() for _ in range(10)]
    made = ranking(*users)
    made.rank_some()
    for used in range(1, 1_000):
        for user in users:
            use(made, user, used)
            assert not asked or made.largest(1)[0].memory == used
        assert len(made._newer) + len(made._older) <= 4 * len(users) + 130
    assert made.largest(10) == users


def test_nothing_is_left_over_of_users_that_have_gone() -> None:
    users = [RankedUsage(used) for used in range(1, 1_001)]
    made = ranking(*users)
    assert made.largest(1) == [users[-1]]
    for user in users[1:]:
        made.discard(user)  # type: ignore[arg-type]
    for _ in range(5 * RANKING_CALLS):
        made.stop_ranking()
    assert len(made._newer) + len(made._older) <= 65
    assert made.largest(1) == [users[0]]


def test_among_equals_the_older_backlog_then_the_earlier_connection_comes_first() -> None:
    users = [
        RankedUsage(oldest_at=9),
        RankedUsage(oldest_at=5),
        RankedUsage(oldest_at=5),
        RankedUsage(oldest_at=7),
    ]
    made = ranking(*users)
    for user in users:
        use(made, user, 10**6)
    assert made.largest(4) == [users[1], users[2], users[3], users[0]]
    users[1].oldest_at = 8
    assert made.largest(4) == [users[2], users[3], users[1], users[0]], "it has drained a little"


def test_a_crowd_of_equals_is_ranked_at_once() -> None:
    users = [RankedUsage(oldest_at=5) for _ in range(2_000)]
    made = ranking(*users)
    for user in users:
        use(made, user, 70_000)
    users[1_234].oldest_at = 3
    assert made.largest(2) == [users[1_234], users[0]]
    assert len(made._newer) + len(made._popped) == 2_000 and all(user.bound == 70_000 for user in users)


STEP = st.tuples(st.sampled_from("ggggsssedpr?"), st.integers(0, 19), st.integers(0, 4))


@settings(max_examples=400, deadline=None)
@given(st.lists(STEP, max_size=250))
def test_it_agrees_with_sorting(steps: list[tuple[str, int, int]]) -> None:
    """Few users and few sizes give many equal ones; stale entries are removed all the time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ranking_module, "SPARE_ENTRIES", 0)
        users = [RankedUsage() for _ in range(20)]
        made, inside = ranking(*users), dict.fromkeys(users)
        for moment, (what, number, size) in enumerate(steps, 1):
            user = users[number]
            if what == "g":
                user.oldest_at = user.oldest_at or moment
                use(made, user, user.memory + size * 100, ranked=user in inside)
            elif what == "s":
                user.memory = user.memory * size // 5
                user.oldest_at = min(user.oldest_at + size, moment) if user.memory else 0
            elif what == "e":
                made.add(user)  # type: ignore[arg-type]
                inside[user] = None
            elif what == "d":
                made.discard(user)  # type: ignore[arg-type]
                inside.pop(user, None)
            elif what == "p":
                made.rank_some()
            elif what == "r":
                made.stop_ranking()
            else:
                assert made.largest(size + 1) == by_sorting(inside)[: size + 1]
            assert len(made) == len(inside)
        assert made.largest(20) == by_sorting(inside)


def by_sorting(users: Iterable[RankedUsage]) -> list[RankedUsage]:
    holding = [user for user in users if user.memory]
    return sorted(holding, key=lambda user: (-user.memory, user.oldest_at, user.connection_number))
