"""The check of histories: a correct history has no fault, and each planted fault is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.torture.history import (
    FaultKind,
    History,
    Interval,
    ReaderHistory,
    Record,
    body_of,
    check,
    topic_of,
)


def history(records: int = 30) -> History:
    """Return a correct history: two alternating publishers, all acknowledged, read by one reader without and
    one with restarts.
    """
    log = [Record(10 + at, "pq"[at % 2], at // 2 + 1, at) for at in range(records)]
    once = ReaderHistory("once", records=list(log))
    again = ReaderHistory("again", back=1, records=[*log[:20], *log[15:]])
    numbers = {"p": (records + 1) // 2, "q": records // 2}
    return History(dict(numbers), dict(numbers), [once, again], list(log))


def found(made: History) -> list[FaultKind]:
    return [fault.kind for fault in check(made)]


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert check(history()) == []


def test_unacknowledged_records_may_be_missing_or_present() -> None:
    made = history()
    made.published["p"] += 5
    assert check(made) == [], "unacknowledged records may be missing"
    made.acknowledged["p"] = 0
    assert check(made) == [], "unacknowledged records may be present"


def lose_the_end(made: History) -> None:
    made.log.pop()
    for reader in made.readers:
        reader.records = [one for one in reader.records if one.sequence < 39]


def lose_the_middle(made: History) -> None:
    del made.log[12]
    for reader in made.readers:
        reader.records = [one for one in reader.records if one.sequence != 22]
    made.acknowledged = {"p": 0, "q": 0}


def store_twice(made: History) -> None:
    last = made.log[-1]
    made.log.append(last._replace(sequence=40))
    for reader in made.readers:
        reader.complete = False


def give_the_number_twice(made: History) -> None:
    made.log.insert(6, made.log[5])


def swap_two_of_one_publisher(made: History) -> None:
    made.log[4], made.log[6] = (
        made.log[4]._replace(number=made.log[6].number),
        made.log[6]._replace(number=made.log[4].number),
    )
    made.readers = []


def reverse_log(made: History) -> None:
    made.log[4], made.log[5] = made.log[5], made.log[4]
    made.readers = []


def set_the_clock_back(made: History) -> None:
    made.log[7] = made.log[7]._replace(accepted_at=1)


def invent(made: History) -> None:
    made.log.append(Record(40, "p", 16, 99))
    for reader in made.readers:
        reader.complete = False


def invent_a_publisher(made: History) -> None:
    made.log.append(Record(40, "stranger", 1, 99))
    for reader in made.readers:
        reader.complete = False


def change_read_body(made: History) -> None:
    made.readers[0].records[3] = made.readers[0].records[3]._replace(number=9)


def remove_read_record(made: History) -> None:
    made.readers[0].records.append(Record(40, "p", 16, 99))


def acknowledge_unpublished(made: History) -> None:
    made.acknowledged["p"] += 1


def skip_one(made: History) -> None:
    del made.readers[0].records[7]


def skip_end(made: History) -> None:
    del made.readers[0].records[-3:]


def skip_one_at_restart(made: History) -> None:
    made.readers[1].records = [one for one in made.readers[1].records if one.sequence != 27]


def read_twice(made: History) -> None:
    made.readers[0].records.insert(7, made.readers[0].records[6])


def begin_again_too_often(made: History) -> None:
    made.readers[1].records += made.log[10:]


def read_out_of_order(made: History) -> None:
    made.readers[0].records[5:7] = reversed(made.readers[0].records[5:7])


BREACHES: list[tuple[Callable[[History], None], set[FaultKind]]] = [
    (lose_the_end, {FaultKind.LOST}),
    (lose_the_middle, {FaultKind.LOST}),
    (store_twice, {FaultKind.DOUBLED}),
    (give_the_number_twice, {FaultKind.DOUBLED}),
    (swap_two_of_one_publisher, {FaultKind.REORDERED}),
    (reverse_log, {FaultKind.REORDERED}),
    (set_the_clock_back, {FaultKind.REORDERED}),
    (invent, {FaultKind.UNEXPLAINED}),
    (invent_a_publisher, {FaultKind.UNEXPLAINED}),
    (change_read_body, {FaultKind.UNEXPLAINED}),
    (remove_read_record, {FaultKind.LOST}),
    (acknowledge_unpublished, {FaultKind.UNEXPLAINED}),
    (skip_one, {FaultKind.LOST}),
    (skip_end, {FaultKind.LOST}),
    (skip_one_at_restart, {FaultKind.LOST}),
    (read_twice, {FaultKind.DOUBLED}),
    (begin_again_too_often, {FaultKind.DOUBLED}),
    (read_out_of_order, {FaultKind.LOST, FaultKind.REORDERED}),
]


@pytest.mark.parametrize(("breach", "kinds"), BREACHES, ids=[breach.__name__ for breach, _ in BREACHES])
def test_a_planted_breach_is_found_and_called_by_its_name(
    breach: Callable[[History], None], kinds: set[FaultKind]
) -> None:
    made = history()
    breach(made)
    assert set(found(made)) == kinds, check(made)


def test_what_was_removed_is_not_missed_and_nothing_else_is_excused_by_it() -> None:
    made = history()
    made.removed_upto = 19
    made.log = made.log[10:]
    assert check(made) == []
    assert found(replace(made, removed_upto=0)).count(FaultKind.LOST) > 2
    del made.log[3]
    assert set(found(made)) == {FaultKind.LOST}


def test_a_gap_excuses_what_it_names() -> None:
    made = history()
    gap = Interval(20, 23)
    made.log = [one for one in made.log if not gap.contains(one.sequence)]
    made.gaps.append(gap)
    for reader in made.readers:
        reader.records = [one for one in reader.records if not gap.contains(one.sequence)]
        reader.gaps.append(gap)
    assert check(made) == []
    made.log = [one for one in made.log if one.sequence != 26]
    assert FaultKind.LOST in found(made)


def test_a_reader_without_a_bookmark_may_miss_one_interval_per_absence() -> None:
    made = history()
    made.readers = [ReaderHistory("live", missed=1, records=[*made.log[:5], *made.log[9:]])]
    assert check(made) == []
    made.readers[0].missed = 0
    assert found(made) == [FaultKind.LOST]


def test_a_message_is_known_by_all_of_its_bytes() -> None:
    made = History()
    assert made.record(7, topic_of(4), body_of("p", 4), 5) == Record(7, "p", 4, 5)
    assert made.faults == []
    for topic, body in (
        (topic_of(4), body_of("p", 4)[:-1]),
        (topic_of(5), body_of("p", 4)),
        ("x", b""),
        ("x", b"\xff 1 "),
    ):
        assert made.record(7, topic, body) is None
    assert found(made) == [FaultKind.UNEXPLAINED] * 4


@given(st.data())
def test_whatever_is_taken_out_of_the_log_is_missed(data: st.DataObject) -> None:
    made = history(40)
    gone = data.draw(st.sets(st.sampled_from(made.log), min_size=1, max_size=39))
    made.log = [one for one in made.log if one not in gone]
    assert FaultKind.LOST in found(made)
