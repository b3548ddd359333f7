"""The file `.clients.ack`: golden bytes, and damaged files that are refused."""

from __future__ import annotations

import pytest

from broker_core.journal.files import FileSystem
from broker_core.journal.publisher_sequences import read_publisher_sequences, write_publisher_sequences
from broker_core.journal.publishers import SessionNumber

SESSIONS = {"anna": (SessionNumber(9, 7), SessionNumber(3, 2))}


def test_golden_bytes(tmp_path):
    path = tmp_path / "i.clients.ack"
    write_publisher_sequences(FileSystem(), path, 42, SESSIONS)
    raw = path.read_bytes()
    assert raw.hex() == "534c5549434541310d82b10d160000002a00000000000000" + b'{"anna":[[9,7],[3,2]]}'.hex()
    assert read_publisher_sequences(path) == (42, SESSIONS)


@pytest.mark.parametrize("offset", range(0, 34, 3))
def test_a_flipped_byte_is_noticed(tmp_path, offset):
    path = tmp_path / "i.clients.ack"
    write_publisher_sequences(FileSystem(), path, 42, SESSIONS)
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)
    assert read_publisher_sequences(path) is None


@pytest.mark.parametrize("raw", [b"", b"SLUICEA1", b"x" * 100])
def test_what_is_no_acks_file(tmp_path, raw):
    (tmp_path / "x").write_bytes(raw)
    assert read_publisher_sequences(tmp_path / "x") is None
    assert read_publisher_sequences(tmp_path / "absent") is None
