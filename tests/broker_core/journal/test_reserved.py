"""Numbers that are shown before their records are stored: reserved ahead, and skipped by the opening after a
crash.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest

from broker_core.errors import OperatorError
from broker_core.journal.frontier_file import (
    COPY_AT,
    RESERVATION_AT,
    FrontierMark,
    decode_mark,
    encode_mark,
    frontier_path,
    read_mark,
)
from broker_core.journal.journal import Journal
from broker_core.journal.segment_copies import compress_segment, copy_segment
from broker_core.journal.tools import inspect
from broker_core.journal.tools.search import LogLocation, locate_record
from tests.broker_core.journal.support import INSTANCE, accept, batch_for, fill, open_journal, read_all

LOG = UUID(int=7)


def crashed(home: Path, journal: Journal) -> Path:
    """Copy the files as a crash would leave them, while the broker goes on; return the copy."""
    copy = home.with_name(f"{home.name}-crashed")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(home, copy)
    return copy


def test_the_opening_after_a_crash_skips_what_was_reserved(tmp_path: Path) -> None:
    home = tmp_path / "home"
    journal = open_journal(home)
    fill(journal, 2)
    journal.reserve(50)
    copy = crashed(home, journal)
    journal.close()
    again = open_journal(copy)
    assert again.next_sequence == 51 and again.recovery.clean
    assert again.recovery.skipped == (7, 50) and "Numbers 7 to 50 were reserved" in again.recovery.reason
    assert (
        again.skipped() == [(7, 50)]
        and again.missing_ranges == []
        and again.lacks(1, 60) == [(1, 6), (51, 60)]
    )
    assert (again.stored_sequence, again.durable_sequence) == (6, 50)
    mark = read_mark(again.directory, INSTANCE)
    assert mark is not None and (mark.sequence, mark.reserved) == (6, 50), "no record has the others"
    twice = crashed(copy, again)
    fill(again, 1)
    assert again.skipped() == [(7, 50)] and again.missing_ranges == [] and again.stored_sequence == 53
    assert [*read_all(again), *read_all(again, 7)] == [*range(1, 7), 51, 52, 53, 51, 52, 53]
    again.close()
    # A second crash before anything was stored leaves the same.
    third = open_journal(twice)
    assert third.next_sequence == 51 and third.skipped() == [(7, 50)]
    third.close()


def test_what_was_skipped_stays_explained_in_every_form_of_the_log(tmp_path: Path) -> None:
    home = tmp_path / "home"
    journal = open_journal(home)
    fill(journal, 2)
    journal.reserve(50)
    copy = crashed(home, journal)
    journal.close()
    journal = open_journal(copy)
    fill(journal, 300, count=5, size=400)
    journal.finish_sealed()
    first, second = journal.segments()[:2]
    assert (second.first_sequence, first.last_sequence) == (51, 6)
    reports = list(inspect.verify_segments(copy / "journal", INSTANCE, copy / "archive"))
    assert all(report.is_ok for report in reports), [report.problem for report in reports]
    assert (reports[1].skipped_from, reports[0].skipped_from) == (7, 0)
    place = LogLocation(copy / "journal", INSTANCE, copy / "archive")
    told = locate_record(place, f"{INSTANCE}|20|")
    assert told["state"] == "skipped" and told["next"] == f"{INSTANCE}|51|", told

    prepared = copy / "journal" / f"{second.name}.gz.prepared"
    compress_segment(second.path, prepared)
    journal.compress_swap(second.name, prepared)
    moved = copy / "archive" / f"{second.name}.gz.prepared"
    copy_segment(journal.segments()[1].path, moved)
    journal.archive_swap(journal.segments()[1].name, moved)
    assert journal.skipped() == [(7, 50)]
    journal.close()
    again = open_journal(copy)
    assert again.recovery.clean and again.recovery.reason == ""
    assert again.skipped() == [(7, 50)] and again.missing_ranges == []

    # Retention removes what is before: what was skipped isn't what was removed.
    again.remove([first.name])
    assert (again.first_sequence, again.begins_at) == (51, 7)
    assert again.read(9, 10_000, again.durable_sequence)[0].first_sequence == 51
    again.close()


def test_a_clean_end_takes_back_what_was_not_used(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    fill(journal, 2)
    journal.reserve(50)
    journal.close()
    again = open_journal(tmp_path)
    assert (again.next_sequence, again.recovery.skipped, again.recovery.reason) == (7, None, "")
    again.close()


def test_numbers_of_records_that_the_disk_refused_are_skipped_after_a_clean_end_too(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    fill(journal, 2)
    journal.reserve(50)
    journal.skip_to(10)
    journal.sync()
    assert journal.stored_sequence == 6
    journal.close()
    again = open_journal(tmp_path)
    assert again.next_sequence == 10 and again.recovery.skipped == (7, 9)
    fill(again, 1)
    again.close()
    once_more = open_journal(tmp_path)
    assert (once_more.recovery.reason, once_more.skipped()) == ("", [(7, 9)])
    once_more.close()


def test_a_log_of_which_nothing_was_stored_begins_behind_what_was_shown(tmp_path: Path) -> None:
    home = tmp_path / "home"
    journal = open_journal(home)
    journal.reserve(50)
    copy = crashed(home, journal)
    journal.close()
    again = open_journal(copy)
    assert (again.next_sequence, again.begins_at, again.stored_sequence) == (51, 1, 0)
    fill(again, 1)
    assert (again.first_sequence, again.begins_at) == (51, 1)
    again.close()


def test_what_was_acknowledged_is_a_loss_although_it_was_reserved(tmp_path: Path) -> None:
    home = tmp_path / "home"
    journal = open_journal(home)
    fill(journal, 2)
    journal.reserve(50)
    at = journal.segments()[0].nbytes
    fill(journal, 1)
    copy = crashed(home, journal)
    journal.close()
    path = next((copy / "journal").glob("*.journal"))
    raw = path.read_bytes()
    path.write_bytes(raw[:at] + bytes(len(raw) - at))
    with pytest.raises(OperatorError) as refused:
        open_journal(copy)
    assert refused.value.code == "journal_behind" and refused.value.details["acknowledged"] == 9
    accept(copy)
    again = open_journal(copy)
    assert again.next_sequence == 51
    assert again.lacks(1, 60) == [(1, 9), (51, 60)], "7 to 9 are lost, 10 to 50 were never stored"
    again.write([batch_for(again, 51)])
    again.sync()
    assert [(hole.first_sequence, hole.last_sequence) for hole in again.missing_ranges] == [(7, 9)]
    assert again.skipped() == [(10, 50)]
    again.close()


def test_a_reservation_is_read_from_either_copy(tmp_path: Path) -> None:
    mark = FrontierMark(6, LOG, reserved=50)
    raw = encode_mark(mark)
    assert decode_mark(raw) == mark
    for at in (RESERVATION_AT, RESERVATION_AT + COPY_AT):
        torn = bytearray(raw)
        torn[at + 12] ^= 1
        assert decode_mark(bytes(torn)) == mark
    assert len(encode_mark(FrontierMark(6, LOG))) == COPY_AT + 48, "who needs none has none"
    journal = open_journal(tmp_path)
    assert frontier_path(journal.directory, INSTANCE).stat().st_size == COPY_AT + 48
    journal.close()
