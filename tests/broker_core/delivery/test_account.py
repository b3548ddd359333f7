"""Delivery accounts against a model that tracks every single message."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.delivery.account import (
    NOTHING,
    AccountTotals,
    DeliveryAccount,
    DiscardCause,
    MessageVolume,
    list_account_volumes,
    sum_accounts,
    sum_volumes,
    total_delivered,
    volume_after,
)

COUNT = 5
"""Records per batch. A record has as many bytes as its sequence, so that no two sums are equal by chance."""
OTHER_BYTES = 7
MEMORY, LOG, FLIGHT, ACKED = "memory", "log", "flight", "acked"
Record = tuple[bool, int]
NO_LOSSES = ("conflated_as_asked", "kept_in_log", "unsubscribed", "refused", "returned")
"""Causes that the subscriber asked for, or after which the log or another consumer has the message."""


def journaled(first: int, count: int = COUNT) -> Batch:
    made = Batch.parse(
        build_single_topic_batch("p", "t", [b"x" * (first + at) for at in range(count)]), verify=False
    )
    made.header = made.header._replace(first_sequence=first)
    return made


def unjournaled() -> Batch:
    return Batch.parse(build_single_topic_batch("p", "t", [b"x" * OTHER_BYTES] * COUNT), verify=False)


class AccountModel:
    """A model of one subscription that tracks each message."""

    def __init__(self) -> None:
        self.account = DeliveryAccount()
        self.records: dict[Record, str | DiscardCause] = {}
        self.handed: set[Record] = set()
        self.newest = self.others = 0

    def amount(self, chosen: Callable[[Record], bool]) -> MessageVolume:
        found = [one for one in self.records if chosen(one)]
        return MessageVolume(len(found), sum(number if kept else OTHER_BYTES for kept, number in found))

    def of(self, *states: str | DiscardCause) -> MessageVolume:
        return self.amount(lambda one: self.records[one] in states)

    def check(self) -> None:
        account, everything = self.account, self.amount(lambda _: True)
        assert account.matched == everything and account.is_empty == (everything == NOTHING)
        assert account.in_log == self.of(LOG) and account.last_matched == self.newest
        assert account.waiting == self.of(MEMORY, LOG) and account.in_flight == self.of(FLIGHT)
        assert account.outstanding == self.of(MEMORY, LOG, FLIGHT) and account.acknowledged == self.of(ACKED)
        assert account.delivered == self.amount(lambda one: one in self.handed) == total_delivered([account])
        gone = {cause: self.of(cause) for cause in DiscardCause if self.of(cause) != NOTHING}
        assert account.discarded == gone
        assert account.lost_volume == sum_volumes(
            what for cause, what in gone.items() if cause not in NO_LOSSES
        )
        assert account.discarded_volume == sum_volumes(gone.values())
        named = {"acknowledged": self.of(ACKED), "in_flight": self.of(FLIGHT), "waiting": account.waiting}
        assert dict(list_account_volumes(account)) == named | {
            cause.value: what for cause, what in gone.items()
        }
        assert sum_volumes(what for _, what in list_account_volumes(account)) == account.matched
        for kept in (True, False):
            side, mine = (
                account.get_totals(kept),
                {one: now for one, now in self.records.items() if one[0] is kept},
            )
            assert side.matched == len(mine)
            assert side.waiting.messages == sum(now in (MEMORY, LOG) for now in mine.values())
            assert side.in_flight.messages == sum(now == FLIGHT for now in mine.values())

    def next(self, kept: bool) -> tuple[Batch, list[Record]]:
        if kept:
            batch, numbers = journaled(self.newest + 1), range(self.newest + 1, self.newest + COUNT + 1)
            self.newest += COUNT
        else:
            batch, numbers = unjournaled(), range(self.others, self.others + COUNT)
            self.others += COUNT
        return batch, [(kept, number) for number in numbers]

    def matched(self, kept: bool, way: int) -> None:
        batch, made = self.next(kept)
        if kept and way == 1:
            self.account.match_in_log(batch)
        elif way == 2:
            assert self.account.match_rows(batch, None) == MessageVolume(
                batch.count, batch.header.bodies_length
            )
        elif way == 3 and kept:
            rows = np.array([1, 3])
            assert self.account.match_rows(batch, rows) == MessageVolume(2, made[1][1] + made[3][1])
            made = [made[1], made[3]]
        else:
            self.account.match(batch)
        self.records |= dict.fromkeys(made, LOG if kept and way == 1 else MEMORY)

    def whole_batches(self, state: str, kept: bool, place: int) -> list[Record]:
        """Return the records of one batch in this state, if a whole batch is in it."""
        batches: dict[int, list[Record]] = {}
        for one in sorted(self.records):
            if one[0] is kept and self.records[one] == state:
                batches.setdefault((one[1] - kept) // COUNT, []).append(one)
        found = [some for some in batches.values() if len(some) == COUNT]
        return found[place % len(found)] if found else []

    def moved(self, way: int, kept: bool, place: int, cause: DiscardCause) -> None:
        if way == 0 and (some := self.whole_batches(MEMORY, True, place)):
            self.account.return_to_log(journaled(some[0][1]))
            self.records |= dict.fromkeys(some, LOG)
        elif way == 1 and (some := self.whole_batches(LOG, True, place)):
            self.reread(some)
        elif way == 2 and (some := self.whole_batches(MEMORY, kept, place)):
            self.account.hand_over(journaled(some[0][1]) if kept else unjournaled())
            self.records |= dict.fromkeys(some, FLIGHT)
            self.handed |= set(some)
        elif way in (3, 4, 5):
            begin, then = {3: (FLIGHT, ACKED), 4: (FLIGHT, cause), 5: (MEMORY, cause)}[way]
            some = [one for one in self.records if one[0] is kept and self.records[one] == begin][
                : place % 3 + 1
            ]
            what = self.amount(lambda one: one in some)
            if way == 3:
                self.account.acknowledge(*what, kept)
            elif way == 4:
                self.account.discard_in_flight(cause, what, kept)
            else:
                self.account.discard_waiting(cause, what, kept)
            self.records |= dict.fromkeys(some, then)

    def reread(self, some: list[Record]) -> None:
        """Read again; of the newest, with records behind them that are new."""
        first, last = some[0][1], some[-1][1]
        more = 2 * COUNT if last == self.newest else COUNT
        self.account.match(journaled(first, more))
        self.newest = max(self.newest, first + more - 1)
        self.records |= {(True, number): MEMORY for number in range(first, first + more)}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("matched"), st.booleans(), st.integers(0, 3)),
        st.tuples(
            st.just("moved"),
            st.integers(0, 5),
            st.booleans(),
            st.integers(0, 5),
            st.sampled_from(DiscardCause),
        ),
    ),
    max_size=25,
)


@given(STEPS, STEPS)
def test_after_whatever_happened_every_figure_is_that_of_the_single_messages(
    one: list[tuple[object, ...]], other: list[tuple[object, ...]]
) -> None:
    models = []
    for steps in (one, other):
        models.append(model := AccountModel())
        for name, *arguments in steps:
            getattr(model, str(name))(*arguments)
            model.check()
    accounts = [model.account for model in models]
    both = sum_accounts([*accounts, DeliveryAccount()])
    for what in (
        "matched",
        "waiting",
        "in_flight",
        "acknowledged",
        "delivered",
        "outstanding",
        "lost_volume",
        "discarded_volume",
        "in_log",
    ):
        assert getattr(both, what) == sum_volumes(getattr(account, what) for account in accounts), what
    assert total_delivered(accounts) == both.delivered
    assert both.discarded == {
        cause: sum_volumes(account.discarded.get(cause, NOTHING) for account in accounts)
        for cause in {*accounts[0].discarded, *accounts[1].discarded}
    }
    for kept in (True, False):
        sides = [account.get_totals(kept) for account in accounts]
        expected = AccountTotals(
            *[
                sum(getattr(side, name) for side in sides)
                for name in (
                    "matched",
                    "matched_bytes",
                    "handed",
                    "handed_bytes",
                    "acknowledged",
                    "acknowledged_bytes",
                )
            ],
            sum_volumes(side.discarded_waiting for side in sides),
            sum_volumes(side.discarded_in_flight for side in sides),
        )
        assert both.get_totals(kept) == expected


def test_what_is_shared_with_others_counts_each_time_it_comes_and_leaves_no_mark() -> None:
    account = DeliveryAccount()
    for first in (6, 1, 6):
        account.match_shared(journaled(first))
    assert account.matched == MessageVolume(15, 40 + 15 + 40) == account.waiting
    assert account.last_matched == 0 and account.in_log == NOTHING


def test_only_what_is_newer_than_a_sequence_is_fresh() -> None:
    batch = journaled(6)
    for upto in range(4, 12):
        newer = [number for number in range(6, 11) if number > upto]
        assert volume_after(batch, upto) == MessageVolume(len(newer), sum(newer))
    explicit = batch.select(np.array([0, 4]))  # 6 and 10
    assert volume_after(explicit, 7) == MessageVolume(1, 10)


def test_amounts_are_added_and_taken_away_by_each_part() -> None:
    assert MessageVolume(5, 70).plus(MessageVolume(2, 30)) == MessageVolume(7, 100)
    assert MessageVolume(5, 70).minus(MessageVolume(2, 30)) == MessageVolume(3, 40)
    assert sum_volumes([]) == NOTHING == MessageVolume(0, 0)


def test_nothing_lost_enters_no_cause() -> None:
    account = DeliveryAccount()
    account.discard_waiting(DiscardCause.DISCARDED, NOTHING, True)
    account.discard_in_flight(DiscardCause.DISCARDED, NOTHING, False)
    assert account.discarded == {}
