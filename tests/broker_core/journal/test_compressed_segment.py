"""The seekable gzip: its members' headers by golden bytes, and finding members again behind damage."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import pytest

from broker_core.errors import JournalError
from broker_core.journal.compressed_segment import (
    CompressedSegmentSource,
    GzipMemberCache,
    encode_member,
    inflate,
    read_members,
)
from broker_core.journal.files import OpenFile


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "x.journal.gz"
    raws = [bytes(4_096), *(bytes([65 + n]) * 1_000 for n in range(4))]
    offset, whole = 0, b""
    for raw in raws:
        whole += encode_member(raw, offset)
        offset += len(raw)
    made.write_bytes(whole)
    return made


def test_golden_bytes_of_a_members_header():
    raw = encode_member(b"a" * 1_000, 4_096)
    assert raw[:16].hex() == "1f8b08040000000000ff1400534a1000"
    assert int.from_bytes(raw[16:20], "little") == len(raw)
    assert raw[20:32].hex() == "e80300000010000000000000"
    assert raw[-4:].hex() == "e8030000"
    assert gzip.decompress(raw) == b"a" * 1_000


def test_any_offset_can_be_read(path):
    source = CompressedSegmentSource(OpenFile(path))
    assert source.length == 8_096
    assert bytes(source.read(4_096 + 999, 10)) == b"A"
    assert bytes(source.read(4_096 + 1_000, 3)) == b"BBB"
    assert bytes(source.read(8_096, 10)) == b""


def test_members_behind_a_damaged_header_are_found(path):
    file = OpenFile(path)
    members = read_members(file)
    raw = bytearray(path.read_bytes())
    raw[members[2].offset + 3] ^= 0xFF
    path.write_bytes(raw)
    source = CompressedSegmentSource(OpenFile(path))
    assert [member.raw_offset for member in source.members] == [0, 4_096, 6_096, 7_096]
    with pytest.raises(JournalError):
        source.read(5_096, 10)
    assert source.next_offset_after(5_096) == 6_096
    assert bytes(source.read(6_096, 1)) == b"C"


def test_a_damaged_member_is_named(path):
    members = read_members(OpenFile(path))
    raw = bytearray(path.read_bytes())
    raw[members[3].offset + members[3].length - 6] ^= 0xFF
    path.write_bytes(raw)
    source = CompressedSegmentSource(OpenFile(path))
    with pytest.raises(JournalError, match="journal_damaged"):
        source.read(6_096, 10)


def test_a_file_that_was_cut_off(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert [member.raw_offset for member in read_members(OpenFile(path))] == [0, 4_096, 5_096, 6_096]
    path.write_bytes(b"\x1f\x8b")
    assert CompressedSegmentSource(OpenFile(path)).length == 0


def test_inflating_a_member_takes_the_memory_of_its_content_once(tmp_path):
    content = random.Random(1).randbytes(1_000) * 1_000
    path = tmp_path / "x.journal.gz"
    path.write_bytes(encode_member(bytes(4_096), 0) + encode_member(content, 4_096))
    file = OpenFile(path)
    _, member = read_members(file)
    tracemalloc.start()
    try:
        assert inflate(file, member) == content
        assert tracemalloc.get_traced_memory()[1] < 1.5 * len(content)
    finally:
        tracemalloc.stop()


def test_a_reader_who_goes_on_gets_every_member_and_damage_where_it_is(path):
    members = read_members(OpenFile(path))
    raw = bytearray(path.read_bytes())
    raw[members[4].offset + members[4].length - 6] ^= 0xFF
    path.write_bytes(raw)
    source = CompressedSegmentSource(OpenFile(path))
    read = [bytes(source.read(offset, 10_000)) for offset in (0, 4_096, 5_096, 6_096)]
    assert read == [bytes(4_096), b"A" * 1_000, b"B" * 1_000, b"C" * 1_000]
    with pytest.raises(JournalError, match="journal_damaged"):
        source.read(7_096, 10)
    assert bytes(source.read(4_096, 1)) == b"A"
    assert source.next_offset_after(7_096) == 8_096


def test_a_reader_who_goes_back_gets_what_stands_there(path):
    source = CompressedSegmentSource(OpenFile(path))
    letters = [bytes(source.read(4_096 + 1_000 * number, 1)) for number in (0, 1, 3, 2, 0)]
    assert letters == [b"A", b"B", b"D", b"C", b"A"]


def test_a_reader_who_only_goes_on_keeps_one_member(path):
    kept = GzipMemberCache(0)
    source = CompressedSegmentSource(OpenFile(path), kept)
    for offset, letter in (
        (4_096, b"A"),
        (4_596, b"A"),
        (5_096, b"B"),
        (6_096, b"C"),
        (7_096, b"D"),
        (4_096, b"A"),
    ):
        assert bytes(source.read(offset, 1)) == letter
        assert kept.nbytes == 1_000


def test_inflated_members_of_all_segments_share_one_budget():
    cache = GzipMemberCache(1_000)
    for segment in range(1, 65):
        for member in range(8):
            cache.put((segment, member), b"x" * 300)
            assert cache.nbytes <= 1_000
    assert cache.get((64, 7)) is not None and cache.get((64, 4)) is None and cache.get((1, 7)) is None
    cache.get((64, 5))
    cache.put((65, 0), b"x" * 300)
    assert (64, 5) in cache and (64, 6) not in cache, "what is read stays longest"
    cache.put((65, 0), b"y" * 100)
    assert cache.nbytes == 300 * 2 + 100
    cache.put((66, 0), b"z" * 5_000)
    assert cache.get((66, 0)) is not None and cache.nbytes == 5_000, (
        "one is always kept: its reader goes on in it"
    )
