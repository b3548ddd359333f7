"""Owners of client names: stored in a file, bounded, and refused when the file is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_core.connections import name_owners
from broker_core.connections.name_owners import ClientNameOwners
from broker_core.errors import OperatorError

GOLDEN = "534c554943454f3186f6928410000000" + b'{"feed":"maria"}'.hex()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "i.owners"


def stored_owners(path: Path) -> ClientNameOwners:
    made = ClientNameOwners(path)
    made.claim("feed", "maria")
    made.write(made.encode())
    return made


def test_golden_bytes(path: Path) -> None:
    stored_owners(path)
    assert path.read_bytes().hex() == GOLDEN


def test_it_is_there_after_a_restart_and_unchanged_until_somebody_comes(path: Path) -> None:
    made = stored_owners(path)
    assert not made.is_changed
    made.claim("feed", "maria")
    assert not made.is_changed
    again = ClientNameOwners(path)
    assert (again.owner_of("feed"), again.owner_of("other"), again.is_changed) == ("maria", None, False)
    again.claim("feed", "vera")
    assert again.is_changed


@pytest.mark.parametrize("offset", range(0, 32, 3))
def test_a_flipped_bit_is_refused_by_name(path: Path, offset: int) -> None:
    stored_owners(path)
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)
    with pytest.raises(OperatorError, match="bad_owners"):
        ClientNameOwners(path)


@pytest.mark.parametrize("raw", [b"", b"SLUICEO1"])
def test_half_a_file_is_refused_by_name(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    with pytest.raises(OperatorError, match="bad_owners"):
        ClientNameOwners(path)


def test_the_names_that_logged_on_last_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_owners, "MAX_NAMES", 2)
    made = ClientNameOwners(path)
    for name in ("a", "b", "a", "c"):
        made.claim(name, "maria")
    assert [made.owner_of(name) for name in ("a", "b", "c")] == ["maria", None, "maria"]
