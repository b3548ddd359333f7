"""Numbers that a broker skipped after a crash: no gap for the data source, and nothing to wait for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker_core.errors import JournalError
from sluice_spark.arrow_reader import ReadRequest, plan_read, read_spans
from sluice_spark.location import LogLocation
from sluice_spark.log import LogGap, examine_log
from tests.broker_core.journal.support import INSTANCE, fill, open_journal


@pytest.fixture
def place(tmp_path: Path) -> LogLocation:
    """Where a log is that has records 1 to 6 and 51 to 59: 7 to 50 were reserved when the broker was killed."""
    journal = open_journal(tmp_path / "before")
    fill(journal, 2)
    journal.reserve(50)
    home = tmp_path / "home"
    shutil.copytree(tmp_path / "before", home)
    journal.close()
    again = open_journal(home)
    fill(again, 3)
    again.close()
    return LogLocation(home / "journal", home / "archive", INSTANCE)


def sequences(place: LogLocation, request: ReadRequest) -> list[int]:
    """What a request reads."""
    return [
        number
        for batch in read_spans(place, plan_read(place, request), request)
        for number in batch.column("sequence").to_pylist()
    ]


def test_what_was_skipped_is_no_incomplete_range(place: LogLocation) -> None:
    log = examine_log(place)
    assert log.gaps(1, log.frontier) == [] and list(log.skipped_sequences()) == [(7, 50)]
    assert sequences(place, ReadRequest()) == [*range(1, 7), *range(51, 60)]
    assert sequences(place, ReadRequest(start=5, end=52)) == [5, 6, 51, 52]
    assert sequences(place, ReadRequest(start=10, end=20)) == []


def test_what_was_skipped_stays_no_gap_when_what_was_before_is_removed(place: LogLocation) -> None:
    journal = open_journal(place.directory.parent)
    journal.remove([journal.segments()[0].name])
    journal.close()
    log = examine_log(place)
    assert [(gap.first, gap.last, gap.why) for gap in log.gaps(1, log.frontier)] == [(1, 6, "removed")]
    assert sequences(place, ReadRequest()) == [*range(51, 60)]


def test_what_is_lost_beside_it_is_a_gap_all_the_same(place: LogLocation) -> None:
    for path in sorted(place.directory.glob("*.index.gz")):
        path.unlink()
    first = min(place.directory.glob("*.journal"))
    raw = first.read_bytes()
    first.write_bytes(raw[:4096] + bytes(len(raw) - 4096))
    with pytest.raises(JournalError) as refused:
        sequences(place, ReadRequest())
    assert (refused.value.code, refused.value.details["last"]) == ("journal_short", 6)
    assert LogGap(1, 6, "missing") not in examine_log(place).gaps(7, 59)
