"""Conflation, with a property test: the last record per key and interval, with the bookmark of the first."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch, build_batch
from broker_core.delivery import conflation
from broker_core.delivery.conflation import Conflator, parse_conflation
from broker_core.errors import ClientError
from broker_core.filters.message_types import decoder_for

S = 1_000_000_000
Row = tuple[int, str, bytes]


def batch_at(moment: int, records: list[tuple[str, bytes]], first_sequence: int = 0) -> Batch:
    batch = Batch.parse(build_batch("feed", [topic for topic, _ in records], [body for _, body in records]))
    batch.stamp(origin=7, epoch=1, first_sequence=first_sequence, accepted_at=moment)
    return batch


def price(key: object, value: int) -> bytes:
    return orjson.dumps({"id": key, "v": value})


def rows_of(batches: list[Batch]) -> list[Row]:
    found = []
    for batch in batches:
        checked = Batch.parse(bytes(batch.buf))  # what a client gets is a whole, verified batch
        found += [(record.sequence, record.topic, record.body) for record in checked.records()]
    return found


def by_id(interval: str = "1s", key: str = "/id") -> Conflator:
    return Conflator(parse_conflation(interval, key), None)


def test_the_last_record_of_a_key_comes_at_the_end_of_its_interval_with_the_first_bookmark() -> None:
    held = by_id()
    assert (
        held.add(batch_at(10 * S, [("p", price(1, 1)), ("p", price(2, 2)), ("p", price(1, 3))], 5), None)
        == []
    )
    assert held.add(batch_at(10 * S + S // 2, [("p", price(1, 4))], 8), None) == []
    assert held.first_sequence == 5
    assert held.ends_at == 11 * S
    out = held.add(batch_at(11 * S, [("p", price(1, 5))], 9), None)
    assert rows_of(out) == [(5, "p", price(1, 4)), (6, "p", price(2, 2))]
    assert (out[0].origin, out[0].accepted_at) == (7, 10 * S + S // 2)
    assert rows_of(held.release()) == [(9, "p", price(1, 5))]


def test_what_has_no_key_replaces_nothing() -> None:
    held = by_id()
    held.add(
        batch_at(
            0, [("p", b"not json"), ("p", b"not json"), ("p", b"{}"), ("p", b'{"id":null}'), ("p", b"[1]")], 1
        ),
        None,
    )
    assert [row[0] for row in rows_of(held.release())] == [1, 2, 3, 4, 5]


def test_a_key_is_read_as_its_topic_is_written() -> None:
    held = Conflator(
        parse_conflation("1s", "/55"), lambda topic: decoder_for("fix") if topic == "fix" else None
    )
    bodies = [b"35=D\x0155=IBM\x0144=1\x01", b"35=D\x0155=IBM\x0144=2\x01", b"35=D\x0155=MSFT\x0144=3\x01"]
    held.add(batch_at(0, [("fix", body) for body in bodies], 1), None)
    assert rows_of(held.release()) == [(1, "fix", bodies[1]), (3, "fix", bodies[2])]


def test_keys_differ_by_type_topic_and_every_path() -> None:
    held = Conflator(parse_conflation("1s", "/a,/b/c"), None)
    bodies = [
        b'{"a":1,"b":{"c":2}}',
        b'{"a":"1","b":{"c":2}}',
        b'{"a":1,"b":{"c":3}}',
        b'{"a":1}',
        b'{"b":{"c":2},"a":1}',
    ]
    held.add(batch_at(0, [("p", body) for body in bodies] + [("q", bodies[0])], 1), None)
    assert rows_of(held.release()) == [
        (1, "p", bodies[4]),
        (2, "p", bodies[1]),
        (3, "p", bodies[2]),
        (4, "p", bodies[3]),
        (6, "q", bodies[0]),
    ]


def test_with_the_topic_as_key_the_last_record_of_each_topic_is_delivered() -> None:
    held = by_id(key="topic")
    held.add(batch_at(0, [("p", b"1"), ("q", b"2"), ("p", b"3")], 1), None)
    assert rows_of(held.release()) == [(1, "p", b"3"), (2, "q", b"2")]


def test_what_is_not_journaled_comes_without_bookmarks() -> None:
    held = by_id()
    held.add(batch_at(0, [("live", price(1, 1))]), None)
    held.add(batch_at(0, [("p", price(1, 1))], 3), None)
    held.add(batch_at(0, [("live", price(1, 2))]), None)
    assert held.first_sequence == 3
    assert rows_of(held.release()) == [(0, "live", price(1, 2)), (3, "p", price(1, 1))]


def test_live_records_come_when_the_clock_passes_the_interval_and_late_ones_in_the_next() -> None:
    held = by_id("250ms")
    held.add(batch_at(S + 1, [("p", price(1, 1))], 1), None)
    assert held.take_due(S + 249_000_000) == []
    assert [row[0] for row in rows_of(held.take_due(S + 250_000_000))] == [1]
    assert held.take_due(2 * S) == []
    held.add(batch_at(S + 240_000_000, [("p", price(1, 2))], 2), None)  # accepted before, committed after
    assert held.add(batch_at(S + 260_000_000, [("p", price(1, 3))], 3), None) == []
    assert rows_of(held.take_due(S + 500_000_000)) == [(2, "p", price(1, 3))]


def test_what_is_held_is_counted_and_forgotten_whole() -> None:
    held = by_id()
    held.add(batch_at(0, [("p", price(1, 1)), ("p", price(2, 1))], 1), None)
    before = held.nbytes
    assert before > 2 * len(price(1, 1))
    held.add(batch_at(0, [("p", price(2, 1_000))], 3), None)
    assert held.nbytes == before + 3
    held.drop()
    assert (held.nbytes, len(held), held.first_sequence, held.ends_at, held.release()) == (0, 0, 0, 0, [])


def test_a_large_interval_comes_out_as_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflation, "MAX_BATCH_RECORDS", 10)
    monkeypatch.setattr(conflation, "MAX_BATCH_TOPICS", 4)
    held = by_id()
    held.add(
        batch_at(0, [(f"t{number % 5 if number < 20 else 0}", price(number, 0)) for number in range(45)], 1),
        None,
    )
    out = held.release()
    assert [row[0] for row in rows_of(out)] == list(range(1, 46))
    assert all(batch.count <= 10 and len(batch.topics) <= 4 for batch in out)


@pytest.mark.parametrize(
    ("interval", "key", "code"),
    [
        ("soon", "/id", "bad_interval"),
        ("0s", "/id", "bad_interval"),
        ("25h", "/id", "bad_interval"),
        ("1s", None, "bad_conflation"),
        ("1s", "id", "bad_conflation"),
        ("1s", "/a /b", "bad_conflation"),
        ("1s", "/a,", "bad_conflation"),
        ("1s", "/a = 1", "bad_conflation"),
        ("1s", ",".join(["/a"] * 9), "bad_conflation"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(interval: str, key: str | None, code: str) -> None:
    with pytest.raises(ClientError) as refused:
        parse_conflation(interval, key)
    assert refused.value.code == code


records = st.tuples(
    st.sampled_from(["p", "q"]), st.sampled_from([price(key, v) for key in (1, 2, "1") for v in (0, 9)])
)
steps = st.lists(
    st.tuples(st.integers(0, 900_000_000), st.lists(records, min_size=1, max_size=5)), min_size=1, max_size=30
)


@settings(max_examples=200, deadline=None)
@given(steps, st.sampled_from(["1s", "250ms", "1ms", "2s"]), st.data())
def test_conflated_replay_is_the_last_per_key_and_interval_of_the_full_replay(
    made: list[tuple[int, list[tuple[str, bytes]]]], interval: str, data: st.DataObject
) -> None:
    moment, sequence, batches = 1_790_000_000 * S, 1, []
    for gap, content in made:
        moment += gap
        batches.append(batch_at(moment, content, sequence))
        sequence += len(content)
    asked = parse_conflation(interval, "/id")
    expected: list[Row] = []
    for _, group in groupby(batches, lambda batch: batch.accepted_at // asked.interval_ns):
        last: dict[object, Row] = {}
        for record in (record for batch in group for record in batch.records()):
            key = (record.topic, repr(orjson.loads(record.body)["id"]))
            last[key] = (last[key][0] if key in last else record.sequence, record.topic, record.body)
        expected += last.values()
    held, out = Conflator(asked, None), list[Batch]()
    for batch in batches:
        out += held.add(batch, None)
        if data.draw(st.integers(0, 9)) == 0 and held.first_sequence:
            # A pause: what is held is forgotten, and the replay goes on from its first record.
            again = held.first_sequence
            held.drop()
            for repeated in batches:
                if again <= repeated.last_sequence <= batch.last_sequence:
                    rows = [
                        row for row, number in enumerate(repeated.sequences().tolist()) if number >= again
                    ]
                    out += held.add(repeated, None if len(rows) == repeated.count else np.array(rows))
    assert rows_of(out + held.release()) == expected
