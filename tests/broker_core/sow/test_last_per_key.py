"""The last record of each key, against a dictionary."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.batch import Batch, build
from broker_core.errors import ClientError
from broker_core.sow.last_per_key import LastPerKey, parse_key


def batch(*records: tuple[str, bytes]) -> Batch:
    return Batch.parse(build("p", [topic for topic, _ in records], [body for _, body in records]))


def kept(fold: LastPerKey, batches: list[Batch]) -> list[bytes]:
    return [batches[number].bodies()[row] for number, rows in fold.remaining() for row in rows.tolist()]


def test_only_the_last_record_of_each_key_remains_in_the_log_s_order() -> None:
    batches = [
        batch(("t", b'{"id":1,"v":1}'), ("t", b'{"id":2,"v":1}')),
        batch(("t", b'{"id":1,"v":2}'), ("t", b'{"id":3,"v":1}'), ("t", b'{"id":3,"v":2}')),
    ]
    fold = LastPerKey(parse_key("/id"))
    for one in batches:
        fold.add(one)
    assert kept(fold, batches) == [b'{"id":2,"v":1}', b'{"id":1,"v":2}', b'{"id":3,"v":2}']
    assert fold.records == 5


def test_equal_ids_on_two_topics_are_two_things_and_topic_alone_is_a_key() -> None:
    batches = [batch(("a", b'{"id":1}'), ("b", b'{"id":1}'), ("a", b'{"id":2}'))]
    by_id, by_topic = LastPerKey(parse_key("/id")), LastPerKey(parse_key("topic"))
    for fold in (by_id, by_topic):
        fold.add(batches[0])
    assert len(kept(by_id, batches)) == 3
    assert kept(by_topic, batches) == [b'{"id":1}', b'{"id":2}']


def test_what_has_no_key_replaces_nothing() -> None:
    batches = [batch(("t", b"not json"), ("t", b'{"x":1}'), ("t", b"not json"))]
    fold = LastPerKey(parse_key("/id"))
    fold.add(batches[0])
    assert len(kept(fold, batches)) == 3


def test_of_a_batch_only_the_rows_given_count() -> None:
    batches = [batch(("t", b'{"id":1,"v":1}'), ("t", b'{"id":1,"v":2}'))]
    fold = LastPerKey(parse_key("/id"))
    fold.add(batches[0], np.array([0]))
    assert kept(fold, batches) == [b'{"id":1,"v":1}']


@pytest.mark.parametrize("text", ["id", "/a,", "/a /b", ",/a", "/a,topic", ",".join(["/a"] * 9), "''"])
def test_a_key_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ClientError) as caught:
        parse_key(text)
    assert caught.value.code in ("bad_key", "bad_filter")


def test_too_many_keys_are_refused() -> None:
    fold = LastPerKey(parse_key("/id"), max_keys=2)
    with pytest.raises(ClientError) as caught:
        fold.add(batch(*(("t", b'{"id":%d}' % number) for number in range(3))))
    assert caught.value.code == "snapshot_too_large"


@given(st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4)), min_size=1, max_size=6), max_size=8))
def test_it_equals_a_dictionary(plan: list[list[tuple[str, int]]]) -> None:
    fold, expected, serial = LastPerKey(parse_key("/id")), dict[tuple[str, int], int](), 0
    batches = []
    for records in plan:
        bodies = []
        for topic, key in records:
            serial += 1
            expected.pop((topic, key), None)
            expected[topic, key] = serial
            bodies.append((topic, orjson.dumps({"id": key, "n": serial})))
        batches.append(batch(*bodies))
        fold.add(batches[-1])
    assert [orjson.loads(body)["n"] for body in kept(fold, batches)] == list(expected.values())
