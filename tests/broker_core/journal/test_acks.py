"""`.clients.ack` and `.durable`: golden bytes, and what is refused."""

from __future__ import annotations

import pytest

from broker_core.journal.acks import read_acks, write_acks
from broker_core.journal.files import Files
from broker_core.journal.frontier import FrontierFile, frontier_path, read_frontier


def test_golden_bytes(tmp_path):
    path = tmp_path / "i.clients.ack"
    write_acks(Files(), path, 42, {"anna": 7})
    raw = path.read_bytes()
    assert raw.hex() == "534c554943454131b6e4713d0a0000002a00000000000000" + b'{"anna":7}'.hex()
    assert read_acks(path) == (42, {"anna": 7})


@pytest.mark.parametrize("offset", range(0, 34, 3))
def test_a_flipped_byte_is_noticed(tmp_path, offset):
    path = tmp_path / "i.clients.ack"
    write_acks(Files(), path, 42, {"anna": 7})
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)
    assert read_acks(path) is None


@pytest.mark.parametrize("raw", [b"", b"SLUICEA1", b"x" * 100])
def test_what_is_no_acks_file(tmp_path, raw):
    (tmp_path / "x").write_bytes(raw)
    assert read_acks(tmp_path / "x") is None
    assert read_acks(tmp_path / "absent") is None


def test_the_frontier_is_text(tmp_path):
    path = frontier_path(tmp_path, "i")
    file = FrontierFile(path)
    file.write(1_234)
    assert path.read_bytes() == b"00000000000000001234\n"
    assert read_frontier(tmp_path, "i") == 1_234
    file.close()


@pytest.mark.parametrize("raw", [b"", b"12\n", b"x" * 21, b"-0000000000000001234\n"])
def test_what_is_no_frontier(tmp_path, raw):
    frontier_path(tmp_path, "i").write_bytes(raw)
    assert read_frontier(tmp_path, "i") is None
    assert read_frontier(tmp_path, "absent") is None
