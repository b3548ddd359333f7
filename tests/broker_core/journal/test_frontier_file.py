"""`.durable`: golden bytes, and which copy is believed."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from broker_core.journal.files import FileSystem
from broker_core.journal.frontier_file import (
    COPY_AT,
    SIZE,
    FrontierFile,
    FrontierMark,
    decode_mark,
    encode_mark,
    frontier_path,
    read_frontier,
    read_mark,
)

LOG = UUID("00112233-4455-6677-8899-aabbccddeeff")
MARK = FrontierMark(1_234, LOG, 7, 1_000)
GOLDEN = (
    "534c554943454431"  # SLUICED1
    "c7280cb5"  # crc
    "07000000"  # epoch
    "d204000000000000"  # sequence
    "e803000000000000"  # given up
    "00112233445566778899aabbccddeeff"  # log
)


def test_golden_bytes() -> None:
    raw = encode_mark(MARK)
    assert raw[:SIZE].hex() == GOLDEN
    assert raw[COPY_AT:].hex() == GOLDEN
    assert not any(raw[SIZE:COPY_AT])


def test_it_says_how_far_the_log_is_durable_and_which_it_is(tmp_path: Path) -> None:
    file = FrontierFile(FileSystem(), frontier_path(tmp_path, "i"), MARK)
    file.write(5_000)
    assert frontier_path(tmp_path, "i").read_bytes() == encode_mark(MARK._replace(sequence=5_000))
    assert read_mark(tmp_path, "i") == MARK._replace(sequence=5_000)
    assert read_frontier(tmp_path, "i") == 5_000
    file.close()


@pytest.mark.parametrize("bit", range(SIZE * 8))
def test_any_flipped_bit_leaves_the_other_copy(bit: int) -> None:
    for start in (0, COPY_AT):
        raw = bytearray(encode_mark(MARK))
        raw[start + bit // 8] ^= 1 << bit % 8
        assert decode_mark(bytes(raw)) == MARK


def test_the_newer_of_two_copies_counts() -> None:
    older, newer = encode_mark(MARK), encode_mark(MARK._replace(sequence=2_000))
    assert decode_mark(older[:COPY_AT] + newer[COPY_AT:]) == MARK._replace(sequence=2_000)
    assert decode_mark(newer[:COPY_AT] + older[COPY_AT:]) == MARK._replace(sequence=2_000)


def test_with_both_copies_damaged_there_is_none() -> None:
    raw = bytearray(encode_mark(MARK))
    raw[20] ^= 1
    raw[COPY_AT + 20] ^= 1
    assert decode_mark(bytes(raw)) is None


def test_a_number_that_no_log_reaches_is_not_believed() -> None:
    assert decode_mark(encode_mark(FrontierMark(2**63, LOG, 1))) is None
    assert decode_mark(encode_mark(FrontierMark(5, LOG, 1, given_up=6))) is None


@pytest.mark.parametrize("raw", [b"", b"12\n", b"x" * 21, b"00000000000000001234\n", b"SLUICED1"])
def test_what_is_no_mark(tmp_path: Path, raw: bytes) -> None:
    frontier_path(tmp_path, "i").write_bytes(raw)
    assert read_mark(tmp_path, "i") is None
    assert read_frontier(tmp_path, "absent") is None
