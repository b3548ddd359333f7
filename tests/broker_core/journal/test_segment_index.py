"""The sparse index and its sidecar."""

from __future__ import annotations

import gzip
import zlib

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch, build_batch, build_single_topic_batch
from broker_core.checksum import crc32c
from broker_core.journal.index_sidecar import decode_sidecar, encode_sidecar, load_sidecar
from broker_core.journal.journal import JournalOptions
from broker_core.journal.segment_index import ENTRY_BYTES, MissingRange, SegmentIndex
from broker_core.journal.topic_index import TopicIndex

from .support import batch_for, open_journal


def batch(first: int, count: int = 1, at: int = 5, topics: list[str] | None = None) -> Batch:
    made = Batch.parse(build_batch("p", topics or ["t"] * count, [b"x"] * len(topics or ["t"] * count)))
    made.stamp(origin=1, epoch=3, first_sequence=first, accepted_at=at)
    return made


def test_the_sidecar_comes_back_and_encodes_to_the_same_bytes():
    index = SegmentIndex("a", 1, 3)
    for number in range(20):
        index.add(4_096 + number * 30_000, batch(number + 1, topics=[f"t{number % 5}"]))
    again = decode_sidecar(encode_sidecar(index))
    assert encode_sidecar(again) == encode_sidecar(index)
    assert again.entries() == index.entries()
    assert again.topic_index.topics == index.topic_index.topics == tuple(f"t{n}" for n in range(5))
    assert (again.end, again.records, again.last_sequence) == (index.end, 20, 20)


def test_unknown_members_of_the_sidecar_are_passed_over(tmp_path):
    index = SegmentIndex("a", 1, 3)
    index.add(4_096, batch(1, topics=["x"]))
    index.holes = (MissingRange(1, 8_192, 64, 2, 3, "damaged"),)
    raw = encode_sidecar(index)
    unpacker = zlib.decompressobj(31)
    document = orjson.loads(unpacker.decompress(raw))
    document |= {"topics": None, "entries": [[*entry, None] for entry in document["entries"]]}
    front = raw[: 12 + int.from_bytes(raw[10:12], "little")]
    packed = gzip.compress(orjson.dumps(document), mtime=0)[10:]
    at = (len(front) + len(packed)).to_bytes(8, "little")
    front = front[:-12] + crc32c(at).to_bytes(4, "little") + at
    path = tmp_path / "a.index.gz"
    path.write_bytes(front + packed + unpacker.unused_data)
    found = load_sidecar(path, "a", 1)
    assert (found.entries(), found.holes) == (index.entries(), index.holes)
    assert found.topic_index.topics == ("x",)


def test_the_sidecar_begins_with_gzip_of_json():
    index = SegmentIndex("a", 1, 3)
    index.add(4_096, batch(1, topics=["x", "y"]))
    first = zlib.decompressobj(31)
    document = orjson.loads(first.decompress(encode_sidecar(index)))
    assert document["entries"] == [[1, 4_096, 5]]
    assert TopicIndex.decode(gzip.decompress(first.unused_data)).topics == ("x", "y")


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
        assert index.may_contain_topic(topic, after) or topic not in behind
    assert not written or not index.may_contain_topic("e", after), "of what was never there it is known"


def test_too_many_topics_mean_any(monkeypatch):
    monkeypatch.setattr("broker_core.journal.segment_index.MAX_PAIRS", 250)
    index = SegmentIndex("a", 1, 3)
    for number in range(4):
        names = [f"t{number}.{n}" for n in range(100)]
        index.add(4_096 + number * ENTRY_BYTES, batch(number * 100 + 1, topics=names))
    for one in (index, decode_sidecar(encode_sidecar(index))):
        assert one.topic_index.topics is None
        assert one.topic_index.topic_mask(["t1.7"]).tolist() == [False, True, True, True]
        assert one.topic_index.topic_mask(["never"]).tolist() == [False, False, True, True]
    assert index.may_contain_topic("never", 1)


@given(
    st.lists(st.none() | st.sets(st.integers(0, 11)), max_size=200),
    st.sets(st.integers(0, 13), max_size=4),
    st.integers(1, 300),
)
def test_law_of_topics_no_stretch_is_left_out_and_of_rare_ones_none_is_too_many(
    stretches: list[set[int] | None], asked: set[int], apart: int
):
    spread = [one for topics in stretches for one in (topics, *[set()] * apart)]
    for held in (stretches, spread):
        there = sorted(set().union(*(one or () for one in held)))
        numbers = [None if one is None else [there.index(topic) for topic in one] for one in held]
        made = TopicIndex.build([f"t{topic}" for topic in there], numbers)
        names = {f"t{n}" for n in asked}
        found = TopicIndex.decode(made.encode())
        assert found.encode() == made.encode()
        exactly = [topics is None or bool(asked & topics) for topics in held]
        often = any(sum(one in (topics or ()) for topics in held) * 2 > len(held) for one in asked)
        for mask in (found.topic_mask(names), found.mask_matching(names.__contains__)):
            assert mask.tolist() == ([True] * len(held) if often else exactly)
        if None not in held:
            assert found.topics == tuple(sorted(f"t{topic}" for topic in there))


def test_golden_bytes_of_the_topics():
    """The vector of docs/format.md."""
    stretches = [[0], [0, 1], [0], *[[0]] * 200, [1, 2], None]
    raw = TopicIndex.build(["b", "a.c", "é"], stretches).encode()
    assert raw.hex() == (
        "03000000cd0000000900000002000000612e63006200c3a900000000030000000000000002000000cc0101ca01cb01"
    )


@pytest.mark.parametrize("raw", [b"", b"x" * 15, b"\xff" * 16, bytes(8) + b"\1\0\0\0" + bytes(8)])
def test_what_are_no_topics_is_refused(raw):
    with pytest.raises(ValueError):
        TopicIndex.decode(raw)


def test_a_reader_has_to_read_what_is_wanted_of_the_range_and_the_time():
    index = SegmentIndex("a", 1, 3)
    for number in range(10):
        index.add(
            4_096 + number * ENTRY_BYTES,
            batch(number * 10 + 1, count=10, at=number, topics=None if number % 4 else ["u"] * 10),
        )
    end = index.end
    wanted = decode_sidecar(encode_sidecar(index)).topic_index.topic_mask(["u"])
    of = decode_sidecar(encode_sidecar(index)).ranges_to_read
    at = [4_096 + number * ENTRY_BYTES for number in range(10)]
    assert of(None) == [(1, 100, at[0], end)]
    assert of(wanted) == [(1, 10, at[0], at[1]), (41, 50, at[4], at[5]), (81, 90, at[8], at[9])]
    assert of(wanted, 11, 80) == [(41, 50, at[4], at[5])]
    assert of(None, 15, 25) == [(11, 30, at[1], at[3])]
    assert of(None, since=9, until=9) == [(81, 100, at[8], end)]
    assert of(None, 101) == []


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
    assert load_sidecar(path, "a", 1) is None


def test_a_sidecar_of_another_segment_is_refused(tmp_path):
    path = tmp_path / "a.index.gz"
    path.write_bytes(encode_sidecar(SegmentIndex("a", 2, 1)))
    assert load_sidecar(path, "a", 1) is None
    assert load_sidecar(path, "b", 2) is None
    assert load_sidecar(path, "a", 2) is not None


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
        one = Batch.parse(build_single_topic_batch("p", "t", [b"x"] * count))
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


def test_a_topic_is_found_by_stretch_in_sealed_segments_and_never_passed_over(tmp_path):
    journal = open_journal(tmp_path, JournalOptions(4 * 1024 * 1024, 1))
    places: dict[str, list[int]] = {}
    for number in range(600):
        topic = f"t.{number // 100}" if number % 7 else "often"
        places.setdefault(topic, []).append(journal.next_sequence)
        journal.write([batch_for(journal, journal.next_sequence, 1, size=8_000, topic=topic)])
    journal.sync()
    journal.finish_sealed()
    sealed = journal.segments()[-2].last_sequence
    assert sealed > 400
    for topics in ({"t.1"}, {"t.3"}, {"t.0", "t.3"}, {"often"}, {"t.1", "none"}):
        held = sorted(one for topic in topics for one in places.get(topic, ()))
        for sequence in range(1, sealed, 13):
            following = next((one for one in held if one >= sequence), sealed + 1)
            found = journal.next_sequence_of_topics(topics, sequence)
            assert sequence <= found <= following
            near = min(abs(found - one) for one in (*held, sealed + 1))
            assert near <= 2 * ENTRY_BYTES // 8_000, "in a stretch that has it"
    assert journal.next_sequence_of_topics({"none"}, 1) == sealed + 1
    journal.close()
