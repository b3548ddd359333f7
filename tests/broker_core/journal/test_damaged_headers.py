"""Damaged segment headers: a checksum proves the original, and otherwise the broker claims nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker_core.journal.frontier_file import frontier_path
from broker_core.journal.segment import HEADER_SIZE, index_path
from broker_core.journal.segment_copies import compress_segment, copy_segment
from broker_core.journal.segment_index import MISSING_RECORDS, UNKNOWN_RECORDS
from broker_core.journal.segment_reader import open_source, read_header
from broker_core.journal.tools import inspect
from broker_core.journal.tools.search import LogLocation, locate_record
from tests.broker_core.journal.support import INSTANCE, fill, flip, open_journal, read_all

DAMAGED_BYTES = {
    "magic": 0,
    "header_crc": 12,
    "origin": 20,
    "epoch": 24,
    "flags": 28,
    "first_sequence": 32,
    "created_at": 42,
    "name": 52,
    "log": 120,
    "skipped_from": 130,
    "padding": 4_000,
}


def skipped_log(home: Path, batches: int) -> Path:
    """Make a log of records 1 to 6 and 51 onwards, continued by a third opening; return the second segment.

    Sequences 7 to 50 were reserved when the broker was killed. With many batches the segment is sealed.
    """
    journal = open_journal(home / "before")
    fill(journal, 2)
    journal.reserve(50)
    shutil.copytree(home / "before", home / "log")
    journal.close()
    for _ in range(2):
        journal = open_journal(home / "log")
        fill(journal, batches)
        journal.finish_sealed()
        journal.close()
    return journal.segments()[1].path


def zero_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(HEADER_SIZE))


@pytest.mark.parametrize("sealed", [False, True], ids=["current", "sealed"])
@pytest.mark.parametrize("field", DAMAGED_BYTES)
def test_a_damaged_header_gets_its_original_bytes_back(tmp_path: Path, field: str, sealed: bool) -> None:
    path = skipped_log(tmp_path, 300 if sealed else 3)
    assert index_path(path).exists() is sealed
    original = path.read_bytes()[:HEADER_SIZE]
    flip(path, DAMAGED_BYTES[field])
    journal = open_journal(tmp_path / "log")
    assert f"{path.name}: its header was restored" in journal.recovery.reason
    assert path.with_name(f"{path.name}.header.0") in journal.recovery.set_aside
    assert journal.skipped() == [(7, 50)] and journal.missing_ranges == [] and journal.lacks(7, 50) == []
    assert journal.recovery.quarantined == [] and "missing" not in journal.recovery.reason
    journal.close()
    assert path.read_bytes()[:HEADER_SIZE] == original
    again = open_journal(tmp_path / "log")
    assert again.recovery.clean and again.recovery.reason == "" and again.skipped() == [(7, 50)]
    again.close()


def test_a_lost_header_is_restored_with_the_sidecars_checksum(tmp_path: Path) -> None:
    path = skipped_log(tmp_path, 300)
    original, sidecar = path.read_bytes(), index_path(path).read_bytes()
    zero_header(path)
    journal = open_journal(tmp_path / "log")
    assert journal.skipped() == [(7, 50)] and journal.missing_ranges == []
    journal.close()
    assert (path.read_bytes(), index_path(path).read_bytes()) == (original, sidecar)


@pytest.mark.parametrize("archived", [False, True], ids=["compressed", "archived"])
@pytest.mark.parametrize("offset", [0, 5, 14, 17, 20, 25, None], ids=lambda offset: f"byte {offset}")
@pytest.mark.parametrize("sidecar", [True, False], ids=["with sidecar", "without sidecar"])
def test_the_header_of_a_compressed_segment_is_restored(
    tmp_path: Path, offset: int | None, archived: bool, sidecar: bool
) -> None:
    path = skipped_log(tmp_path, 300)
    journal = open_journal(tmp_path / "log")
    prepared = path.with_name(f"{path.name}.gz.prepared")
    compress_segment(path, prepared)
    journal.compress_swap(path.name, prepared)
    path = journal.segments()[1].path
    if archived:
        moved = tmp_path / "log" / "archive" / f"{path.name}.prepared"
        copy_segment(path, moved)
        journal.archive_swap(path.name, moved)
        path = journal.segments()[1].path
    expected = read_all(journal)
    journal.close()
    original = path.read_bytes()
    if offset is not None:
        flip(path, offset)
    else:
        with path.open("r+b") as file:
            file.seek(32)
            file.write(bytes(20))
    if not sidecar:
        index_path(path).unlink()
    journal = open_journal(tmp_path / "log")
    assert read_all(journal) == expected
    proven = (
        sidecar or offset is not None
    )  # the header's content can be inflated, and has a checksum of its own
    if proven:
        assert journal.skipped() == [(7, 50)] and journal.missing_ranges == []
        assert path.read_bytes() == original
    else:
        assert [hole.why for hole in journal.missing_ranges] == [UNKNOWN_RECORDS]
    assert path.with_name(f"{path.name}.header.0") in journal.recovery.set_aside
    journal.close()
    assert read_header(open_source(path)).first_sequence == 51
    again = open_journal(tmp_path / "log")
    assert again.recovery.clean == proven and read_all(again) == expected
    again.close()


def test_the_broker_says_that_it_does_not_know_whether_sequences_were_skipped(tmp_path: Path) -> None:
    path = skipped_log(tmp_path, 3)
    zero_header(path)
    place = LogLocation(tmp_path / "log" / "journal", INSTANCE, tmp_path / "log" / "archive")
    for opening in range(3):
        before, report, *_ = inspect.verify_segments(*place)
        assert before.is_ok and "isn't known whether records 7 to 50 existed" in report.problem, report
        assert "are missing" not in report.problem
        found = locate_record(place, f"{INSTANCE}|20|")
        assert (found["state"], found["why"]) == (
            "unknown",
            f"{UNKNOWN_RECORDS[:1].upper()}{UNKNOWN_RECORDS[1:]}.",
        )
        journal = open_journal(tmp_path / "log")
        ranges = [(hole.first_sequence, hole.last_sequence, hole.why) for hole in journal.missing_ranges]
        assert ranges == [(7, 50, UNKNOWN_RECORDS)]
        assert journal.recovery.quarantined == journal.missing_ranges and not journal.recovery.clean
        assert "It isn't known whether records 7 to 50 existed" in journal.recovery.reason
        assert "are missing" not in journal.recovery.reason
        assert ("its header was rebuilt" in journal.recovery.reason) == (opening == 0)
        assert journal.gaps(5, 60) == [(5, 6, False), (7, 50, True), (51, 60, False)]
        assert journal.skipped() == []
        fill(journal, 300)  # seals the segment: its sidecar and its header agree
        journal.finish_sealed()
        journal.close()


def test_a_lost_header_between_consecutive_segments_leaves_no_doubt(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    fill(journal, 60, size=1_000)
    journal.close()
    second = journal.segments()[1].path
    index_path(second).unlink()
    zero_header(second)
    again = open_journal(tmp_path)
    assert again.missing_ranges == [] and again.recovery.quarantined == []
    assert read_all(again) == list(range(1, 181))
    again.close()
    once_more = open_journal(tmp_path)
    assert once_more.recovery.clean and once_more.recovery.reason == ""
    once_more.close()


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "current"])
@pytest.mark.parametrize("nbytes", [8, 500])
def test_a_segment_whose_beginning_is_zeros_keeps_its_other_records(
    tmp_path: Path, nbytes: int, sealed: bool
) -> None:
    """The zeros cover the header and a part of the first batch."""
    journal = open_journal(tmp_path)
    fill(journal, 60, size=1_000)
    journal.finish_sealed()
    journal.close()
    damaged = journal.segments()[1 if sealed else -1]
    index_path(damaged.path).unlink(missing_ok=True)
    with damaged.path.open("r+b") as file:
        file.write(bytes(HEADER_SIZE + nbytes))
    first = damaged.first_sequence
    again = open_journal(tmp_path)
    lost = [first, first + 1, first + 2]  # the first batch
    assert read_all(again) == [one for one in range(1, 181) if one not in lost]
    assert (lost[0], lost[-1]) in [(one.first_sequence, one.last_sequence) for one in again.missing_ranges]
    assert not any(path.name.endswith(".empty") for path in again.recovery.set_aside)
    again.close()


def test_records_that_are_missing_are_a_loss_although_a_header_was_restored(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    fill(journal, 80, size=1_000)
    journal.close()
    removed, damaged = journal.segments()[1:3]
    removed.path.unlink()
    index_path(removed.path).unlink()
    flip(damaged.path, 130)
    again = open_journal(tmp_path)
    ranges = [(hole.first_sequence, hole.last_sequence, hole.why) for hole in again.missing_ranges]
    assert ranges == [(removed.first_sequence, removed.last_sequence, MISSING_RECORDS)]
    again.close()


def test_the_epoch_of_a_rewritten_header_is_that_of_the_opening_that_made_the_segment(tmp_path: Path) -> None:
    path = skipped_log(tmp_path, 3)
    epoch = read_header(open_source(path)).epoch
    frontier_path(path.parent, INSTANCE).unlink()  # every record is written again
    flip(path, 24)
    open_journal(tmp_path / "log").close()
    header = read_header(open_source(path))
    assert (header.epoch, header.skipped_from) == (epoch, 7)


@pytest.mark.parametrize("lost", [False, True], ids=["damaged", "lost"])
def test_the_identity_of_a_log_outlives_a_damaged_header_or_its_loss_is_reported(
    tmp_path: Path, lost: bool
) -> None:
    journal = open_journal(tmp_path)
    fill(journal, 3)
    journal.close()
    path = journal.segments()[0].path
    frontier_path(path.parent, INSTANCE).unlink()
    if lost:
        zero_header(path)
    else:
        flip(path, 24)
    again = open_journal(tmp_path)
    assert (again.identity == journal.identity) is not lost
    assert ("No file has the log's identity" in again.recovery.reason) is lost
    assert read_all(again) == list(range(1, 10))
    again.close()
