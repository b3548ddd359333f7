"""Sequences that a broker skipped after a crash: no gap for the data source, and no wait for them."""

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
def log_location(tmp_path: Path) -> LogLocation:
    """A log with records 1 to 6 and 51 to 59.

    7 to 50 were reserved when the broker was killed.
    """
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


def sequences(log_location: LogLocation, request: ReadRequest) -> list[int]:
    """Return the sequences that a request reads."""
    return [
        number
        for batch in read_spans(log_location, plan_read(log_location, request), request)
        for number in batch.column("sequence").to_pylist()
    ]


def test_what_was_skipped_is_no_incomplete_range(log_location: LogLocation) -> None:
    log = examine_log(log_location)
    assert log.gaps(1, log.frontier) == [] and list(log.skipped()) == [(7, 50)]
    assert sequences(log_location, ReadRequest()) == [*range(1, 7), *range(51, 60)]
    assert sequences(log_location, ReadRequest(start=5, end=52)) == [5, 6, 51, 52]
    assert sequences(log_location, ReadRequest(start=10, end=20)) == []


def test_what_was_skipped_stays_no_gap_when_what_was_before_is_removed(log_location: LogLocation) -> None:
    journal = open_journal(log_location.directory.parent)
    journal.remove([journal.segments()[0].name])
    journal.close()
    log = examine_log(log_location)
    assert [(gap.first, gap.last, gap.why) for gap in log.gaps(1, log.frontier)] == [(1, 6, "removed")]
    assert sequences(log_location, ReadRequest()) == [*range(51, 60)]


@pytest.mark.parametrize("opened", [False, True], ids=["damaged", "rebuilt"])
def test_a_lost_header_leaves_a_gap_that_is_called_unknown(log_location: LogLocation, opened: bool) -> None:
    with max(log_location.directory.glob("*.journal")).open("r+b") as file:
        file.write(bytes(4096))
    if opened:
        open_journal(log_location.directory.parent).close()
    (gap,) = examine_log(log_location).gaps(1, 59)
    assert gap == LogGap(7, 50, "unknown") and "isn't known whether records 7 to 50 existed" in str(gap)


def test_what_is_lost_beside_it_is_a_gap_all_the_same(log_location: LogLocation) -> None:
    for path in sorted(log_location.directory.glob("*.index.gz")):
        path.unlink()
    first = min(log_location.directory.glob("*.journal"))
    raw = first.read_bytes()
    first.write_bytes(raw[:4096] + bytes(len(raw) - 4096))
    with pytest.raises(JournalError) as refused:
        sequences(log_location, ReadRequest())
    assert (refused.value.code, refused.value.details["last"]) == ("journal_short", 6)
    assert LogGap(1, 6, "missing") not in examine_log(log_location).gaps(7, 59)
