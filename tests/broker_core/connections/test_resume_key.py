"""The key that signs resume tokens: created once, stored, and readable only by its owner."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from broker_core.connections.resume import KEY_BYTES, load_or_create_key


def test_it_is_made_the_first_time_and_is_the_same_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "state" / "i.resume.key"
    key = load_or_create_key(path)
    assert len(key) == KEY_BYTES
    assert load_or_create_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("left", [b"", b"x" * (KEY_BYTES - 1)])
def test_a_truncated_key_is_created_again(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "i.resume.key"
    path.write_bytes(left)
    key = load_or_create_key(path)
    assert (len(key), path.read_bytes()) == (KEY_BYTES, key)
