"""Which records are journaled: by topic, by content, by message type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from broker_core.batch import Batch, build_batch
from broker_core.config import InstanceSettings, JournaledTopic, PolicyDocument, default_policy
from broker_core.errors import OperatorError
from broker_core.subscriptions.journaled_topics import JournaledTopics
from broker_core.subscriptions.partition import BatchPartition
from broker_core.subscriptions.topics import TopicPattern


def journaled(*entries: JournaledTopic, without: tuple[str, ...] = ()) -> JournaledTopics:
    return JournaledTopics(InstanceSettings("one", entries, without))


def batch_of(*records: tuple[str, bytes]) -> Batch:
    return Batch.parse(build_batch("p", [topic for topic, _ in records], [body for _, body in records]))


def parts(topics: JournaledTopics, *records: tuple[str, bytes]) -> tuple[list[bytes], list[bytes]]:
    found = topics.split_batch(batch_of(*records))
    return (
        found.unjournaled.bodies() if found.unjournaled else [],
        found.journaled.bodies() if found.journaled else [],
    )


def test_whole_batches_are_passed_as_they_are():
    topics = journaled(JournaledTopic("orders.>"))
    batch = batch_of(("orders.a", b"1"), ("orders.b", b"2"))
    assert topics.split_batch(batch) == BatchPartition(None, batch)
    batch = batch_of(("quotes", b"1"))
    assert topics.split_batch(batch) == BatchPartition(batch, None)
    assert not topics.decides_by_content


def test_a_mixed_batch_is_parted_by_topic():
    topics = journaled(JournaledTopic(">"), without=("scratch.>",))
    assert parts(topics, ("a", b"1"), ("scratch.x", b"2"), ("a", b"3")) == ([b"2"], [b"1", b"3"])


def test_a_filter_keeps_what_passes_it():
    topics = journaled(JournaledTopic("orders", filter="/price > 100"))
    records = [("orders", b'{"price": %d}' % price) for price in (50, 150, 100, 101)]
    assert parts(topics, *records) == (
        [b'{"price": 50}', b'{"price": 100}'],
        [b'{"price": 150}', b'{"price": 101}'],
    )
    assert parts(topics, records[1]) == ([], [b'{"price": 150}'])
    assert parts(topics, records[0]) == ([b'{"price": 50}'], [])
    assert parts(topics, ("orders", b"not json"), ("other", b'{"price": 500}'))[1] == []
    assert topics.is_journaled("orders")
    assert not topics.is_journaled("other")


def test_several_filters_of_a_topic_are_alternatives_and_one_entry_without_keeps_all():
    by_price, by_name = JournaledTopic("o.>", filter="/p > 1"), JournaledTopic("o.a", filter="/n = 'x'")
    records = [("o.a", b'{"p": 2}'), ("o.a", b'{"n": "x"}'), ("o.b", b'{"n": "x"}')]
    assert parts(journaled(by_price, by_name), *records) == ([records[2][1]], [records[0][1], records[1][1]])
    assert parts(journaled(by_price, JournaledTopic("o.b")), *records)[1] == [records[0][1], records[2][1]]


def test_filters_read_the_topics_message_type():
    topics = journaled(
        JournaledTopic("fix.>", "fix", "/35 = 'D'"),
        JournaledTopic("nv", "nvfix", "/Symbol LIKE '^I'", "|"),
        JournaledTopic("mp", "msgpack", "/px > 10"),
        JournaledTopic("raw", "binary"),
    )
    kept = [
        ("fix.a", b"8=FIX.4.4\x0135=D\x01"),
        ("nv", b"Symbol=IBM|Px=1"),
        ("mp", msgspec.msgpack.encode({"px": 11})),
        ("raw", b"\0\1"),
    ]
    passed = [("fix.a", b"35=F\x01"), ("nv", b"Symbol=MSFT|"), ("mp", msgspec.msgpack.encode({"px": 1}))]
    found = parts(topics, *kept, *passed)
    assert found == ([body for _, body in passed], [body for _, body in kept])


def test_the_first_entry_that_matches_gives_the_type():
    topics = journaled(JournaledTopic("a.b", "fix"), JournaledTopic("a.>", "msgpack"))
    assert topics.decoder_of("a.b") is not topics.decoder_of("a.c")
    assert topics.decoder_of("z") is None
    assert topics.decoder_of("$SLUICE.clients") is None


def test_the_brokers_own_topics_are_always_journaled():
    topics = journaled(JournaledTopic("$SLUICE.>", filter="/a = 1"), without=(">",))
    batch = batch_of(("$SLUICE.decisions", b"{}"))
    assert topics.split_batch(batch) == BatchPartition(None, batch)


@pytest.mark.parametrize(
    "entry", [JournaledTopic("a", filter="/x ="), JournaledTopic("a..b"), JournaledTopic("~(")]
)
def test_what_cannot_be_compiled_is_a_bad_policy(entry):
    with pytest.raises(OperatorError) as caught:
        journaled(entry)
    assert caught.value.code == "bad_policy"


def document(entries: list[object], **more: object) -> dict[str, object]:
    made = default_policy("one").to_dict()
    made["instance"] = {**made["instance"], "journaled_topics": entries, **more}
    return made


def test_entries_are_patterns_or_objects_in_the_policy():
    written = ["orders", {"topic": "fix.>", "message_type": "fix", "filter": "/35 = 'D'", "separator": "|"}]
    policy = PolicyDocument.from_dict(document(written))
    assert policy.instance.journaled_topics == (
        JournaledTopic("orders"),
        JournaledTopic("fix.>", "fix", "/35 = 'D'", "|"),
    )
    assert policy.to_dict()["instance"]["journaled_topics"] == written
    assert PolicyDocument.from_dict(policy.to_dict()) == policy


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {"message_type": "fix"},
        {"topic": "a", "message_type": "xml"},
        {"topic": "a", "color": 1},
        {"topic": ["a"]},
        {"topic": "a", "message_type": "binary", "filter": "/a = 1"},
        {"topic": "a", "separator": "|"},
        {"topic": "a", "message_type": "fix", "separator": "="},
        {"topic": "a", "message_type": "fix", "separator": "||"},
    ],
)
def test_entries_that_mean_nothing_are_refused(entry):
    with pytest.raises(OperatorError) as caught:
        PolicyDocument.from_dict(document([entry]))
    assert len(caught.value.details["problems"]) == 1


def test_directories_are_absolute_and_two():
    made = PolicyDocument.from_dict(document([">"], journal_directory="/a/j/", archive_directory="/a/k"))
    assert (made.instance.journal_directory, made.instance.archive_directory) == ("/a/j", "/a/k")
    for wrong in (
        {"journal_directory": "j"},
        {"archive_directory": 1},
        {"journal_directory": "/a", "archive_directory": "/a"},
    ):
        with pytest.raises(OperatorError):
            PolicyDocument.from_dict(document([">"], **wrong))


@pytest.mark.parametrize(
    ("pattern", "nothing"),
    [
        ("orders.a", False),
        ("orders.*", False),
        (">", False),
        ("*.a", False),
        ("~quotes", False),
        ("$SLUICE.>", False),
        ("$SLUICE.*", False),
        ("quotes", True),
        ("quotes.>", True),
        ("orders", True),
        ("orders.tmp.>", True),
        ("orders.tmp.*.x", True),
        ("$other.>", True),
        ("old.>", True),
        ("*.*", False),
        ("*", True),
    ],
)
def test_a_pattern_without_journaled_topics_is_reported(pattern: str, nothing: bool) -> None:
    topics = journaled(JournaledTopic("orders.>"), JournaledTopic("old.a"), without=("orders.tmp.>", "old.>"))
    assert topics.covers_nothing(TopicPattern.parse(pattern)) is nothing


@pytest.mark.parametrize(
    ("before", "after", "pattern", "extent"),
    [
        ([">"], ["orders.>"], "prices.a", "all"),
        ([">"], ["orders.>"], "orders.a", ""),
        ([">"], ["orders.>"], ">", "part"),
        ([">"], ["orders.>"], "orders.*", ""),
        ([">"], ["orders.>"], "prices.>", "all"),
        (["orders.>"], [">"], ">", ""),
        (["orders.>", "prices.>"], ["prices.>"], ">", "part"),
        (["orders.>", "prices.>"], ["prices.>"], "prices.*", ""),
        (["orders.>"], ["prices.>"], "prices.a", ""),
        (["a"], [{"topic": "a", "filter": "/n > 1"}], "a", "part"),
        ([{"topic": "a", "filter": "/n > 1"}], ["a"], "a", ""),
        ([{"topic": "a", "filter": "/n > 1"}], [{"topic": "a", "filter": "/n > 2"}], "a", "part"),
        ([{"topic": "a.>", "filter": "/n > 1"}], [{"topic": "a.>", "filter": "/n > 1"}], "a.*", ""),
        ([">"], [">"], "~.*", ""),
        ([">"], ["orders.>"], "~or.*", "part"),
        ([">"], ["orders.>"], "scratch.a", ""),
    ],
)
def test_what_of_a_pattern_is_no_longer_journaled(
    before: list[Any], after: list[Any], pattern: str, extent: str
) -> None:
    def topics_of(entries: list[Any]) -> JournaledTopics:
        made = [JournaledTopic(one) if isinstance(one, str) else JournaledTopic(**one) for one in entries]
        return JournaledTopics(replace(default_policy("i").instance, journaled_topics=tuple(made)))

    assert topics_of(after).narrowed_from(topics_of(before), TopicPattern.parse(pattern)) == extent


def test_a_pattern_that_is_taken_out_narrows_what_reaches_it() -> None:
    whole = JournaledTopics(default_policy("i").instance)
    taken = JournaledTopics(replace(default_policy("i").instance, unjournaled_topics=("scratch.>", "a.b")))
    found = {
        text: taken.narrowed_from(whole, TopicPattern.parse(text)) for text in ("a.b", "a.>", "c.>", ">")
    }
    assert found == {"a.b": "all", "a.>": "part", "c.>": "", ">": "part"}
