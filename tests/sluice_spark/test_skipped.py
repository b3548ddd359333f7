"""Numbers that a broker skipped after a crash: no gap for the data source, and nothing to wait for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker_core.errors import JournalError
from sluice_spark.log import Gap, examine
from sluice_spark.place import LogPlace
from sluice_spark.reading import Request, plan, read_spans
from tests.broker_core.journal.support import INSTANCE, fill, open_journal


@pytest.fixture
def place(tmp_path: Path) -> LogPlace:
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
    return LogPlace(home / "journal", home / "archive", INSTANCE)


def sequences(place: LogPlace, request: Request) -> list[int]:
    """What a request reads."""
    return [
        number
        for batch in read_spans(place, plan(place, request), request)
        for number in batch.column("sequence").to_pylist()
    ]


def test_what_was_skipped_is_no_incomplete_range(place: LogPlace) -> None:
    log = examine(place)
    assert log.gaps(1, log.frontier) == [] and list(log.skipped()) == [(7, 50)]
    assert sequences(place, Request()) == [*range(1, 7), *range(51, 60)]
    assert sequences(place, Request(start=5, end=52)) == [5, 6, 51, 52]
    assert sequences(place, Request(start=10, end=20)) == []


def test_what_was_skipped_stays_no_gap_when_what_was_before_is_removed(place: LogPlace) -> None:
    journal = open_journal(place.directory.parent)
    journal.remove([journal.segments()[0].name])
    journal.close()
    log = examine(place)
    assert [(gap.first, gap.last, gap.why) for gap in log.gaps(1, log.frontier)] == [(1, 6, "removed")]
    assert sequences(place, Request()) == [*range(51, 60)]


def test_what_is_lost_beside_it_is_a_gap_all_the_same(place: LogPlace) -> None:
    for path in sorted(place.directory.glob("*.index.gz")):
        path.unlink()
    first = min(place.directory.glob("*.journal"))
    raw = first.read_bytes()
    first.write_bytes(raw[:4096] + bytes(len(raw) - 4096))
    with pytest.raises(JournalError) as refused:
        sequences(place, Request())
    assert (refused.value.code, refused.value.details["last"]) == ("journal_short", 6)
    assert Gap(1, 6, "missing") not in examine(place).gaps(7, 59)
