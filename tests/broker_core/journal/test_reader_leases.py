"""Readers in other processes hold the log for a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_core.journal.files import FileSystem
from broker_core.journal.reader_leases import (
    LONGEST_NS,
    ReaderLease,
    leases_path,
    read_leases,
    release_lease,
    remove_expired_leases,
    write_lease,
)

FILES = FileSystem()
NOW = 1_795_262_400_000_000_000
MINUTE = 60_000_000_000


def test_a_lease_holds_until_it_expires_and_says_until_when(tmp_path: Path) -> None:
    write_lease(FILES, tmp_path, "one", "lake.host.7", ReaderLease("lake on host (7)", 500, NOW + MINUTE))
    (held,) = read_leases(tmp_path, "one", NOW)
    assert (held.owner, held.sequence, held.kind) == (
        "pipeline lake on host (7) until 2026-11-21 12:01:00Z",
        500,
        "pipeline",
    )
    assert read_leases(tmp_path, "one", NOW + MINUTE) == []
    assert read_leases(tmp_path, "other", NOW) == []


def test_what_killed_readers_left_is_removed_a_day_later_and_nothing_else(tmp_path: Path) -> None:
    home = leases_path(tmp_path, "one")
    remove_expired_leases(tmp_path, "one", NOW)
    for name, expires in (("left", -24 * 61), ("lately", -1), ("living", 1)):
        write_lease(FILES, tmp_path, "one", name, ReaderLease(name, 1, NOW + expires * MINUTE))
    (home / "odd.json").write_text("{")
    remove_expired_leases(tmp_path, "one", NOW)
    assert sorted(path.name for path in home.iterdir()) == ["lately.json", "living.json", "odd.json"]


def test_renewed_and_dropped(tmp_path: Path) -> None:
    for sequence in (1, 9):
        write_lease(FILES, tmp_path, "one", "a", ReaderLease("a", sequence, NOW + MINUTE))
    assert [held.sequence for held in read_leases(tmp_path, "one", NOW)] == [9]
    release_lease(tmp_path, "one", "a")
    release_lease(tmp_path, "one", "a")
    assert not leases_path(tmp_path, "one").exists()


def test_what_is_no_lease_holds_nothing(tmp_path: Path) -> None:
    home = leases_path(tmp_path, "one")
    home.mkdir()
    (home / "garbage.json").write_bytes(b"\xff{")
    (home / "directory.json").mkdir()
    write_lease(FILES, tmp_path, "one", "for-ever", ReaderLease("for ever", 1, NOW + 2 * LONGEST_NS))
    write_lease(FILES, tmp_path, "one", "good", ReaderLease("good", 3, NOW + LONGEST_NS))
    assert [held.sequence for held in read_leases(tmp_path, "one", NOW)] == [3]
    with pytest.raises(ValueError, match="can't name"):
        write_lease(FILES, tmp_path, "one", "../one", ReaderLease("x", 1, NOW + MINUTE))
