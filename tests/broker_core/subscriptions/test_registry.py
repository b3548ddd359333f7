"""Registry.match: rows per subscriber, shared work, and untouched subscriptions."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch
from broker_core.filters import batch_evaluator
from broker_core.subscriptions import SubscriptionRegistry, TopicPattern, TopicSubscription, registry

from .making import batch_of, subscription

TOPICS = ("a", "b", "a.b", "a.c", "$x", "a.b.c", "$x.b", "a..c", "a.*", "a.>")
PATTERNS = (
    "a",
    "b",
    "a.b",
    "a.c",
    "a.b.c",
    "$x.b",
    ">",
    "a.*",
    "a.>",
    "*",
    "$x",
    "~a|b",
    "b.>",
    "*.b",
    "*.*.c",
    "a.*.>",
    "$x.>",
    "$x.*",
    "~a\\..",
    "~\\$x.*",
)
FILTERS = (None, "/n > 1", "/n = 0", "/m IS NULL", "/missing = 1", "/n IN (1, '2') AND /m = 1", "'0' = /n")
records = st.tuples(
    st.sampled_from(TOPICS), st.sampled_from([b'{"n":0}', b'{"n":1}', b'{"n":2,"m":1}', b"not json"])
)


def matching_rows(batch: Batch, one: TopicSubscription[None]) -> list[int]:
    """Return the rows that one subscription matches, record by record."""
    rows = []
    for row, record in enumerate(batch.records()):
        if one.pattern.matches(record.topic) and (one.filter is None or _passes(one, record.body)):
            rows.append(row)
    return rows


def _passes(one: TopicSubscription[None], body: bytes) -> bool:
    assert one.filter is not None
    try:
        return one.filter.matches_object(orjson.loads(body))
    except orjson.JSONDecodeError:
        return False


def found_by(subject: SubscriptionRegistry[None], batch: Batch) -> dict[TopicSubscription[None], list[int]]:
    matches = subject.match(batch)
    found = {
        match.subscription: list(range(batch.count)) if match.rows is None else match.rows.tolist()
        for match in matches
    }
    assert len(found) == len(matches), "a subscription is there twice"
    assert all(match.rows is None or len(match.rows) < batch.count for match in matches), "all rows are None"
    return found


@pytest.mark.parametrize("indexed_from", [1, 3, registry.INDEXED_FROM])
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(PATTERNS), st.sampled_from(FILTERS)), max_size=12),
    st.lists(st.lists(records, min_size=1, max_size=6), min_size=1, max_size=3),
)
@settings(max_examples=100, deadline=None)
def test_matching_agrees_with_looking_at_every_record(
    indexed_from: int,
    changes: list[tuple[bool, str, str | None]],
    batches: list[list[tuple[str, bytes]]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "INDEXED_FROM", indexed_from)
        check_against_every_record(changes, batches)


def check_against_every_record(
    changes: list[tuple[bool, str, str | None]], batches: list[list[tuple[str, bytes]]]
) -> None:
    subject, live = SubscriptionRegistry[None](None), list[TopicSubscription[None]]()
    for leaves, pattern, text in changes:
        if leaves and live:
            assert subject.remove(live.pop(0))
        else:
            live.append(subscription(pattern, text))
            subject.add(live[-1])
        for made in batches:
            batch = batch_of(made)
            expected = {one: rows for one in live if (rows := matching_rows(batch, one))}
            assert found_by(subject, batch) == expected
    assert len(subject) == len(live)
    assert set(subject) == set(live)


def test_a_batch_of_one_topic_is_matched_without_touching_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = SubscriptionRegistry(None)
    for pattern in ("a.b", "a.>", ">", "x.>"):
        subject.add(subscription(pattern))
    batch = batch_of([("a.b", b"{}")] * 3)

    def touched(*_: object) -> None:
        raise AssertionError("a record was touched")

    monkeypatch.setattr(batch_evaluator, "orjson", None)
    for name in ("rows", "bodies", "topic_indexes", "sequences", "records"):
        monkeypatch.setattr(Batch, name, property(touched) if name in ("rows", "topic_indexes") else touched)
    assert [match.rows for match in subject.match(batch)] == [None] * 3


def test_rows_are_one_array_for_those_who_want_the_same() -> None:
    subject = SubscriptionRegistry(None)
    some = [subscription("a.*", "/n > 0"), subscription("a.*", "/n>0"), subscription("a.>", "/n > 0")]
    for one in some:
        subject.add(one)
    batch = batch_of([("a.b", b'{"n":1}'), ("b", b'{"n":1}'), ("a.c", b'{"n":0}')])
    rows = {id(match.rows) for match in subject.match(batch)}
    assert len(subject.match(batch)) == 3
    assert len(rows) == 1
    single = batch_of([("a.b", b'{"n":1}'), ("a.b", b'{"n":0}')])
    assert len({id(match.rows) for match in subject.match(single)}) == 1


def test_the_caller_may_change_the_list_it_gets() -> None:
    subject = SubscriptionRegistry(None)
    subject.add(subscription("a"))
    batch = batch_of([("a", b"{}")])
    subject.match(batch).clear()
    assert len(subject.match(batch)) == 1


def test_removing_what_is_not_there_says_so_and_adding_twice_counts_once() -> None:
    subject, one = SubscriptionRegistry(None), subscription("a", "/n = 1")
    assert subject.remove(one) is False
    subject.add(one)
    subject.add(one)
    assert len(subject) == 1
    assert subject.remove(subscription("a", "/n = 1")) is False
    assert subject.remove(one) is True
    assert subject.remove(one) is False
    assert len(subject) == 0
    assert subject.match(batch_of([("a", b'{"n":1}')])) == []


def test_narrowed_patterns_differ_by_their_texts() -> None:
    subject, asked = SubscriptionRegistry[None](None), TopicPattern.parse("a.>")
    for part in ("b", "c"):
        narrowed = TopicPattern(f"a.> within a.{part}", None, f"a.{part}".__eq__, asked.levels)
        subject.add(TopicSubscription(None, part, 1, narrowed))
    assert [match.subscription.id for match in subject.match(batch_of([("a.c", b"{}")]))] == ["c"]
    for one in list(subject):
        assert subject.remove(one)
    assert subject.match(batch_of([("a.c", b"{}")])) == []


def test_a_new_pattern_costs_a_topic_that_is_in_use_a_walk_and_not_a_look_at_every_pattern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject, looked, matches = SubscriptionRegistry[None](None), list[str](), TopicPattern.matches
    for number in range(100):
        subject.add(subscription(f"desk.{number}.*", f"/n = {number}"))
        subject.add(subscription(f"~desk\\.{number}\\..*"))
    batch = batch_of([("desk.7.orders", b'{"n":7}')])
    assert len(subject.match(batch)) == 2
    monkeypatch.setattr(
        TopicPattern, "matches", lambda self, topic: looked.append(self.text) or matches(self, topic)
    )
    for pattern in ("desk.7.>", "~desk\\..*", "desk.8.>", "~x"):
        subject.add(subscription(pattern))
        subject.match(batch)
    assert sorted(looked) == sorted(["desk.7.*"] * 4 + ["desk.7.>"] * 4 + ["~desk\\..*", "~x"])


def test_remembered_topics_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_REMEMBERED_TOPICS", 8)
    subject = SubscriptionRegistry(None)
    subject.add(subscription(">"))
    for number in range(50):
        assert len(subject.match(batch_of([(f"t.{number}", b"{}")]))) == 1
        assert len(subject._remembered) <= 8


def test_a_batch_whose_dictionary_names_topics_it_does_not_hold_gives_no_empty_matches() -> None:
    subject = SubscriptionRegistry(None)
    subject.add(subscription("a"))
    subject.add(subscription("b"))
    both = batch_of([("a", b"{}"), ("b", b"{}")], first_sequence=5)
    only_a = both.select(np.array([0]))
    assert [match.subscription.pattern.text for match in subject.match(only_a)] == ["a"]
    assert subject.match(only_a)[0].rows is None
