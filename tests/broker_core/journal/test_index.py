"""The sparse index and its sidecar."""

from __future__ import annotations

import gzip

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch, build, build_one_topic
from broker_core.journal.index import ENTRY_BYTES, SegmentIndex
from broker_core.journal.sidecar import decode, encode, load


def batch(first: int, count: int = 1, at: int = 5, topics: list[str] | None = None) -> Batch:
    made = Batch.parse(build("p", topics or ["t"] * count, [b"x"] * len(topics or ["t"] * count)))
    made.stamp(origin=1, epoch=3, first_sequence=first, accepted_at=at)
    return made


def test_the_sidecar_comes_back_and_encodes_to_the_same_bytes():
    index = SegmentIndex("a", 1, 3)
    for number in range(20):
        index.add(4_096 + number * 30_000, batch(number + 1, topics=[f"t{number % 5}"]))
    again = decode(encode(index))
    assert encode(again) == encode(index)
    assert again.entries() == index.entries()
    assert set(again.topics) == {f"t{n}" for n in range(5)}
    assert (again.end, again.records, again.last_sequence) == (index.end, 20, 20)


def test_the_sidecar_is_gzip_of_json():
    index = SegmentIndex("a", 1, 3)
    index.add(4_096, batch(1, topics=["x", "y"]))
    document = orjson.loads(gzip.decompress(encode(index)))
    assert document["topics"] == ["x", "y"]
    assert document["entries"] == [[1, 4_096, 5, [0, 1]]]


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([64, ENTRY_BYTES // 2, 3 * ENTRY_BYTES])),
        max_size=90,
    ),
    st.integers(0, 100),
)
def test_what_it_says_a_segment_cant_hold_isnt_there(written: list[tuple[str, int]], after: int):
    index, offset = SegmentIndex("a", 1, 3), 4_096
    for number, (topic, nbytes) in enumerate(written):
        index.add(offset, batch(number + 1, topics=[topic]))
        offset += nbytes
    behind = {topic for topic, _ in written[max(after - 1, 0) :]}
    for topic in "abcde":
        assert index.may_hold(topic, after) or topic not in behind
    assert not written or not index.may_hold("e", after), "of what was never there it is known"


def test_too_many_topics_mean_any():
    index = SegmentIndex("a", 1, 3)
    for number in range(70):
        index.add(4_096 + number * 8, batch(number * 100 + 1, topics=[f"t{number}.{n}" for n in range(100)]))
    assert [entry[3] for entry in index.entries()] == [None]
    index.entries()
    assert index.topics is None
    assert decode(encode(index)).topics is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"x",
        gzip.compress(b"x", mtime=0),
        gzip.compress(b"{}", mtime=0),
        gzip.compress(b"[]", mtime=0),
        gzip.compress(b'{"version":2}', mtime=0),
    ],
)
def test_what_is_no_sidecar_is_refused(tmp_path, raw):
    path = tmp_path / "a.index.gz"
    path.write_bytes(raw)
    assert load(path, "a", 1) is None


def test_a_sidecar_of_another_segment_is_refused(tmp_path):
    path = tmp_path / "a.index.gz"
    path.write_bytes(encode(SegmentIndex("a", 2, 1)))
    assert load(path, "a", 1) is None
    assert load(path, "b", 2) is None
    assert load(path, "a", 2) is not None


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.integers(200, 2 * ENTRY_BYTES), st.integers(1, 50)),
        min_size=1,
        max_size=40,
    ),
    st.data(),
)
def test_law_find_rounds_down(steps, data):
    """`find` and `find_moment` never lead behind the batch that is looked for."""
    index, offset, first = SegmentIndex("a", 1, 1), 4_096, 1
    places = []
    for count, size, at in steps:
        one = Batch.parse(build_one_topic("p", "t", [b"x"] * count))
        one.stamp(origin=1, epoch=1, first_sequence=first, accepted_at=at)
        index.add(offset, one)
        places.append((first, first + count - 1, offset, at))
        offset, first = offset + size * 8, first + count
    sequence = data.draw(st.integers(1, first - 1))
    place = next(place for place in places if place[1] >= sequence)
    assert index.find(sequence)[0] <= place[2]
    moment = data.draw(st.integers(0, 60))
    later = [place for place in places if place[3] >= moment]
    if later:
        assert index.find_moment(moment)[0] <= later[0][2]
