"""The record batch: golden bytes, agreement of building and reading, and batches that a reader refuses."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core import batch as batches
from broker_core.batch import Batch
from broker_core.errors import ClientError

GOLDEN = (
    "534c42310100000003000000100000005000000050000000443035ef4f2eaa03511e23aef8e33c330300000000000000"
    "290000000000000001002a36fe9c971793bea59d0c40db430700000000000000030000000a0000000000000000000000"
    "030003007075620300612e62010063000100000007000000010000000000000000000000000000000200000001000000"
    "020000000300000001000000020000006868687b226e223a317d78797a000000"
)

topics = st.sampled_from(["a", "a.b", "prices.eur", "ü"])
records = st.lists(st.tuples(topics, st.binary(max_size=40), st.binary(max_size=8)), min_size=1, max_size=150)


def golden() -> bytearray:
    built = batches.build_batch("pub", ["a.b", "c", "a.b"], [b'{"n":1}', b"", b"xyz"], [b"h", b"", b"hh"], 7)
    batches.stamp_header(
        built,
        origin=batches.hash64("inst"),
        epoch=3,
        first_sequence=41,
        accepted_at=1_700_000_000_000_000_001,
    )
    return built


def test_the_format_is_what_it_was() -> None:
    """Journals must stay readable: a change of these bytes is a new version of the format."""
    assert golden().hex() == GOLDEN


def test_golden_bytes_are_read_as_they_were_written() -> None:
    found = Batch.parse(bytes.fromhex(GOLDEN))
    assert [tuple(record) for record in found.records()] == [
        ("a.b", b'{"n":1}', b"h", 41, 7),
        ("c", b"", b"", 42, 8),
        ("a.b", b"xyz", b"hh", 43, 9),
    ]
    assert (found.publisher_name, found.header.epoch, found.last_sequence, found.last_publisher_sequence) == (
        "pub",
        3,
        43,
        9,
    )
    assert found.accepted_at == 1_700_000_000_000_000_001


@given(records, st.integers(0, 2**40))
def test_what_is_built_is_what_is_read(made: list[tuple[str, bytes, bytes]], first: int) -> None:
    names, bodies, headers = map(list, zip(*made, strict=True))
    found = Batch.parse(batches.build_batch("me", names, bodies, headers, first))
    assert [(r.topic, r.body, r.headers) for r in found.records()] == made
    expected = [first + i if first else 0 for i in range(len(made))]
    assert [r.publisher_sequence for r in found.records()] == expected
    assert found.nbytes % 8 == 0


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=150), st.integers(1, 2**40))
def test_the_fast_path_makes_the_same_bytes_as_the_general_one(bodies: list[bytes], first: int) -> None:
    assert batches.build_single_topic_batch("me", "t", bodies, first) == batches.build_batch(
        "me", ["t"] * len(bodies), bodies, None, first
    )


@given(records, st.data())
def test_selected_rows_stand_for_themselves_with_their_own_sequences(
    made: list[tuple[str, bytes, bytes]], data: st.DataObject
) -> None:
    names, bodies, headers = map(list, zip(*made, strict=True))
    whole = Batch.parse(batches.build_batch("me", names, bodies, headers, 5))
    whole.stamp(origin=1, epoch=1, first_sequence=100, accepted_at=9)
    rows = sorted(data.draw(st.sets(st.integers(0, len(made) - 1), min_size=1)))
    part = Batch.parse(bytes(whole.select(np.array(rows)).buf))
    assert list(part.records()) == [list(whole.records())[row] for row in rows]
    assert (part.first_sequence, part.last_sequence) == (100 + rows[0], 100 + rows[-1])
    if len(of := {names[row] for row in rows}) == 1:
        assert set(part.topics) == of, "of one topic, it names no other"


@given(records, st.data())
def test_a_batch_cut_into_stretches_is_the_whole_again(
    made: list[tuple[str, bytes, bytes]], data: st.DataObject
) -> None:
    names, bodies, headers = map(list, zip(*made, strict=True))
    whole = Batch.parse(batches.build_batch("me", names, bodies, headers, 5))
    whole.stamp(origin=1, epoch=1, first_sequence=100, accepted_at=9)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(made)))) | {0, len(made)})
    parts = [Batch.parse(bytes(whole.select(np.arange(start, stop)).buf)) for start, stop in pairwise(cuts)]
    assert [record for part in parts for record in part.records()] == list(whole.records())


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_noticed_wherever_it_stands(place: int, change: int) -> None:
    damaged = golden()
    damaged[place % len(damaged)] ^= change
    with pytest.raises(ClientError) as caught:
        Batch.parse(damaged)
    assert caught.value.code == "bad_batch"


@given(st.binary(max_size=300))
def test_garbage_is_refused_and_never_crashes(garbage: bytes) -> None:
    with pytest.raises(ClientError):
        Batch.parse(garbage)


@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize(
    ("place", "value"), [(0, 9), (4, 9), (8, 0), (8, 2)], ids=["headers", "body", "topic 0", "topic 2"]
)
def test_a_row_table_that_lies_is_refused_although_its_checksum_fits(
    rows: int, place: int, value: int
) -> None:
    from broker_core.checksum import crc32c

    lying = batches.build_single_topic_batch("me", "t", [b"x"] * rows, 1)
    lying[96 + 16 + place] = value
    lying[24:28] = crc32c(lying[96:]).to_bytes(4, "little")
    batches.stamp_header(lying, origin=0, epoch=0, first_sequence=0, accepted_at=0)
    with pytest.raises(ClientError) as caught:
        Batch.parse(lying)
    assert "row table" in caught.value.sentence


def test_a_batch_that_is_cut_off_is_refused() -> None:
    with pytest.raises(ClientError):
        Batch.parse(golden()[:-8])


def test_more_records_than_the_limit_are_refused_when_building() -> None:
    with pytest.raises(ClientError):
        batches.build_single_topic_batch("me", "t", [b""] * (batches.MAX_RECORDS + 1))


def test_an_unjournaled_batch_has_no_sequences() -> None:
    found = Batch.parse(batches.build_single_topic_batch("me", "t", [b"1", b"2"], 1))
    assert found.sequences().tolist() == [0, 0]
    assert found.last_sequence == 0
