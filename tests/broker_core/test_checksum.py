"""The checksum is CRC32C, of any buffer, in pieces or whole, and compiled."""

from __future__ import annotations

import mmap
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.checksum import crc32c


def by_bits(data: bytes, before: int = 0) -> int:
    """The definition, a bit at a time."""
    state = before ^ 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_published_values(data: bytes, value: int) -> None:
    assert crc32c(data) == by_bits(data) == value


@given(st.binary(max_size=600), st.integers(0, 600), st.integers(0, 2**32 - 1))
def test_every_buffer_and_every_cut_gives_the_same(data: bytes, cut: int, before: int) -> None:
    whole, column = by_bits(data), np.frombuffer(data, np.uint8)
    assert {crc32c(kind) for kind in (data, memoryview(data), bytearray(data), column, column.data)} == {
        whole
    }
    assert crc32c(memoryview(data)[cut:], crc32c(data[:cut])) == whole
    assert crc32c(data, before) == by_bits(data, before)


@pytest.mark.parametrize("size", [4_096, 65_536 + 1, 1_048_576 + 7])
def test_large_buffers_go_by_other_instructions_and_give_the_same(size: int, tmp_path: Path) -> None:
    data = np.random.default_rng(size).bytes(size)
    pieces = 0
    for at in range(0, size, 61):
        pieces = crc32c(data[at : at + 61], pieces)
    path = tmp_path / "large"
    path.write_bytes(data)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert {crc32c(data), crc32c(memoryview(data)), crc32c(mapped)} == {pieces}


def test_it_is_compiled() -> None:
    assert isinstance(crc32c, types.BuiltinFunctionType)
