"""The last record of each key, against a dictionary."""

from __future__ import annotations

import msgspec
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.batch import Batch, build_batch
from broker_core.errors import ClientError
from broker_core.filters.message_types import decoder_for
from broker_core.subscriptions.keys import LastPerKey, parse_key


def batch(*records: tuple[str, bytes]) -> Batch:
    return Batch.parse(build_batch("p", [topic for topic, _ in records], [body for _, body in records]))


def fold_batches(fold: LastPerKey, batches: list[Batch]) -> list[bytes]:
    return [batches[number].bodies()[row] for number, rows in fold.last_rows() for row in rows.tolist()]


def test_only_the_last_record_of_each_key_remains_in_the_log_s_order() -> None:
    batches = [
        batch(("t", b'{"id":1,"v":1}'), ("t", b'{"id":2,"v":1}')),
        batch(("t", b'{"id":1,"v":2}'), ("t", b'{"id":3,"v":1}'), ("t", b'{"id":3,"v":2}')),
    ]
    fold = LastPerKey(parse_key("/id").key_of_record(None))
    for one in batches:
        fold.add(one)
    assert fold_batches(fold, batches) == [b'{"id":2,"v":1}', b'{"id":1,"v":2}', b'{"id":3,"v":2}']


def test_equal_ids_on_two_topics_are_two_things_and_topic_alone_is_a_key() -> None:
    batches = [batch(("a", b'{"id":1}'), ("b", b'{"id":1}'), ("a", b'{"id":2}'))]
    by_id, by_topic = (
        LastPerKey(parse_key("/id").key_of_record(None)),
        LastPerKey(parse_key("topic").key_of_record(None)),
    )
    for fold in (by_id, by_topic):
        fold.add(batches[0])
    assert len(fold_batches(by_id, batches)) == 3
    assert fold_batches(by_topic, batches) == [b'{"id":1}', b'{"id":2}']


def test_what_has_no_key_replaces_nothing() -> None:
    batches = [batch(("t", b"not json"), ("t", b'{"x":1}'), ("t", b"not json"))]
    fold = LastPerKey(parse_key("/id").key_of_record(None))
    fold.add(batches[0])
    assert len(fold_batches(fold, batches)) == 3


def test_only_the_given_rows_of_a_batch_count() -> None:
    batches = [batch(("t", b'{"id":1,"v":1}'), ("t", b'{"id":1,"v":2}'))]
    fold = LastPerKey(parse_key("/id").key_of_record(None))
    fold.add(batches[0], np.array([0]))
    assert fold_batches(fold, batches) == [b'{"id":1,"v":1}']


@pytest.mark.parametrize("text", ["id", "/a,", "/a /b", ",/a", "/a,topic", ",".join(["/a"] * 9), "''"])
def test_a_key_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ClientError) as caught:
        parse_key(text)
    assert caught.value.code in ("bad_key", "bad_filter")


def test_a_body_is_read_as_its_topic_is_written() -> None:
    decoders = {
        "fix": decoder_for("fix"),
        "nvfix": decoder_for("nvfix", "|"),
        "packed": decoder_for("msgpack"),
    }
    batches = [
        batch(
            ("fix", b"55=IBM\x0144=1\x01"),
            ("fix", b"55=IBM\x0144=2\x01"),
            ("fix", b"55=MSFT\x0144=3\x01"),
            ("nvfix", b"55=IBM|Price=1|"),
            ("nvfix", b"55=IBM|Price=2|"),
            ("nvfix", b'{"55":"IBM"}'),
            ("packed", msgspec.msgpack.encode({"55": "IBM", "v": 1})),
            ("packed", msgspec.msgpack.encode({"v": 2, "55": "IBM"})),
            ("json", b'{"55":"IBM","v":1}'),
            ("json", b'{"v":2,"55":"IBM"}'),
        )
    ]
    fold = LastPerKey(parse_key("/55").key_of_record(decoders.get))
    fold.add(batches[0])
    bodies = batches[0].bodies()
    assert fold_batches(fold, batches) == [bodies[row] for row in (1, 2, 4, 5, 7, 9)]


@given(st.integers(245, 260))
def test_a_field_nested_deeper_than_a_key_may_be_is_none(depth: int) -> None:
    nested = b'{"id":' + b"[" * depth + b"]" * depth + b"}"
    key = parse_key("/id").key_of_record(None)("t", nested)
    assert (key is None) == (depth > 253)


def test_too_many_keys_are_refused() -> None:
    fold = LastPerKey(parse_key("/id").key_of_record(None), max_keys=2)
    with pytest.raises(ClientError) as caught:
        fold.add(batch(*(("t", b'{"id":%d}' % number) for number in range(3))))
    assert caught.value.code == "snapshot_too_large"


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4)), min_size=1, max_size=6), max_size=8
    )
)
def test_it_equals_a_dictionary(plan: list[list[tuple[str, int]]]) -> None:
    fold, expected, serial = LastPerKey(parse_key("/id").key_of_record(None)), dict[tuple[str, int], int](), 0
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
    assert [orjson.loads(body)["n"] for body in fold_batches(fold, batches)] == list(expected.values())
