"""The loss ledger: intervals that hold every lost record, and counts that are exact."""

from __future__ import annotations

import msgspec

from broker_core.delivery.account import DiscardCause
from broker_core.delivery.loss_ledger import DiscardTally, LossLedger, tally_entries
from tests.support.broker_simulation import SECOND, outbox_entry


def test_what_one_rule_takes_from_a_subscription_in_a_second_is_one_interval() -> None:
    ledger = LossLedger()
    for first in (7, 11):
        ledger.record_loss(
            SECOND,
            "c",
            "s",
            "t.>",
            DiscardCause.DISCARDED,
            "limit",
            tally_entries([outbox_entry(10, sequence=first, count=2)]),
        )
    (loss,) = ledger.close_intervals()
    assert msgspec.to_builtins(loss.to_entry("i")) == {
        "at": 1_000,
        "client": "c",
        "subscription": "s",
        "topic": "t.>",
        "cause": "discarded",
        "rule": "limit",
        "messages": 4,
        "bytes": 4,
        "unjournaled": 0,
        "from": "i|7|",
        "to": "i|12|",
        "exact": False,
    }
    assert ledger.close_intervals() == [] and ledger.messages == 4


def test_an_interval_is_exact_only_if_no_other_record_lies_in_it() -> None:
    def is_exact(*ranges: tuple[int, int]) -> bool:
        tally = DiscardTally()
        for first, count in ranges:
            tally.merge(tally_entries([outbox_entry(count, sequence=first, count=count)]))
        return tally.is_exact

    assert is_exact((7, 2)) and is_exact((7, 2), (9, 2))
    assert not is_exact((7, 2), (10, 2)), "record 9 lies between them"
    assert not is_exact((7, 1), (7, 1), (9, 1)), "7 was returned twice"
    assert DiscardTally(messages=3, unjournaled=3).is_exact, "there is no interval"


def test_subscriptions_topics_causes_and_rules_are_kept_apart() -> None:
    ledger = LossLedger()
    one = tally_entries([outbox_entry(10)])
    ledger.record_loss(1, "c", "s", "t", DiscardCause.DISCARDED, "limit", one)
    ledger.record_loss(1, "c", "other", "t", DiscardCause.DISCARDED, "limit", one)
    ledger.record_loss(1, "c", "s", "t", DiscardCause.CONFLATED, "limit", one)
    ledger.record_loss(1, "c", "s", "t", DiscardCause.DISCARDED, "another", one)
    ledger.record_loss(1, "c", "s", "of the same id", DiscardCause.DISCARDED, "limit", one)
    assert [loss.tally.messages for loss in ledger.close_intervals()] == [1, 1, 1, 1, 1]
    assert len(ledger.recent) == ledger.intervals == 5


def test_what_no_journal_keeps_has_a_count_and_no_interval() -> None:
    tally = tally_entries([outbox_entry(10, journaled=False, count=3), outbox_entry(10, sequence=5)])
    assert tally == DiscardTally(messages=4, nbytes=4, first=5, last=5, unjournaled=3, unjournaled_bytes=3)
    other = DiscardTally()
    other.merge(tally)
    other.merge(DiscardTally())
    assert other == tally


def test_journaled_and_unjournaled_losses_are_distinct() -> None:
    tally = tally_entries([outbox_entry(10, journaled=False, count=3), outbox_entry(20, sequence=5, count=2)])
    gone, kept = tally.split_journaled()
    assert gone == tally_entries([outbox_entry(10, journaled=False, count=3)]) and kept == tally_entries(
        [outbox_entry(20, sequence=5, count=2)]
    )
    assert DiscardTally().split_journaled() == (DiscardTally(), DiscardTally())


def test_nothing_given_up_is_no_interval() -> None:
    ledger = LossLedger()
    ledger.record_loss(1, "c", "s", "t", DiscardCause.DISCARDED, "limit", DiscardTally())
    assert ledger.close_intervals() == []
