"""The commands ls, verify, dump and repair, without a broker and beside a running one."""

from __future__ import annotations

import orjson
import pytest

from broker_core.batch import Batch, build_batch
from broker_core.errors import JournalError, OperatorError
from broker_core.journal.index_sidecar import load_sidecar
from broker_core.journal.segment import HEADER_SIZE, index_path
from broker_core.journal.tools import inspect
from tests.broker_core.journal.support import INSTANCE, batch_for, fill, flip, open_journal, read_all
from tests.broker_core.journal.test_journal import kill


@pytest.fixture
def journal_directory(tmp_path):
    return tmp_path / "journal", INSTANCE, tmp_path / "archive"


def test_list_beside_a_running_broker(tmp_path, journal_directory):
    journal = open_journal(tmp_path)
    fill(journal, 60, size=1_000)
    journal.finish_sealed()
    assert inspect.list_segments(*journal_directory) == journal.segments()
    journal.close()


def test_verify_says_ok(tmp_path, journal_directory):
    journal = open_journal(tmp_path)
    fill(journal, 60, size=1_000)
    assert all(report.is_ok for report in inspect.verify_segments(*journal_directory))
    journal.close()
    assert sum(report.records for report in inspect.verify_segments(*journal_directory)) == 180


def test_verify_names_damage_and_missing_segments(tmp_path, journal_directory):
    journal = open_journal(tmp_path)
    fill(journal, 80, size=1_000)
    journal.close()
    first, second = journal.segments()[:2]
    flip(first.path, HEADER_SIZE + 100)
    second.path.unlink()
    reports = list(inspect.verify_segments(*journal_directory))
    assert [report.is_ok for report in reports][:3] == [False, False, True]
    assert reports[0].holes[0].first_sequence == 1
    assert (
        f"records {second.first_sequence} to {second.last_sequence} before it are missing"
        in reports[1].problem
    )


def test_a_tail_that_was_never_persisted_is_no_damage(tmp_path, journal_directory):
    journal = open_journal(tmp_path)
    fill(journal, 2)
    position = journal.write([batch_for(journal, 7)])[0]
    path = journal.segments()[0].path
    kill(journal)
    flip(path, position.offset + 100)
    (report,) = inspect.verify_segments(*journal_directory)
    assert report.torn_bytes > 0
    assert report.is_ok


def test_dump(tmp_path, journal_directory):
    journal = open_journal(tmp_path)
    bodies = [b'{"a": 1}', b"text", b"\xff\xfe", b"null"]
    batch = Batch.parse(build_batch("p", ["x", "y", "x", "x"], bodies, [b"h", b"", b"", b""], 7))
    batch.stamp(origin=journal.origin, epoch=1, first_sequence=1, accepted_at=9)
    journal.write([batch])
    journal.sync()
    journal.close()
    lines = [orjson.loads(line) for line in inspect.dump_records(*journal_directory)]
    assert lines[0] == {
        "bookmark": f"{INSTANCE}|1|",
        "topic": "x",
        "accepted_at": 9,
        "publisher": "p",
        "publisher_sequence": 7,
        "data": {"a": 1},
        "headers": "aA==",
    }
    assert [line.get("text", line.get("base64", line.get("data"))) for line in lines[1:]] == [
        "text",
        "//4=",
        None,
    ]
    assert [
        orjson.loads(line)["bookmark"]
        for line in inspect.dump_records(*journal_directory, first=2, last=3, topic="x")
    ] == [f"{INSTANCE}|3|"]


def test_dump_ends_at_the_frontier(tmp_path, journal_directory):
    journal = open_journal(tmp_path)
    fill(journal, 30, size=1_000)
    journal.write([batch_for(journal, 91)])
    assert len(list(inspect.dump_records(*journal_directory))) == 90
    assert len(list(inspect.dump_records(*journal_directory, first=80))) == 11
    journal.close()


def test_dump_stops_loudly_at_damage(tmp_path, journal_directory):
    journal = open_journal(tmp_path)
    fill(journal, 30, size=1_000)
    journal.close()
    flip(journal.segments()[0].path, HEADER_SIZE + 20_000)
    seen = []
    with pytest.raises(JournalError, match="journal_damaged"):
        seen.extend(inspect.dump_records(*journal_directory))
    assert len(seen) % 3 == 0


def test_repair_cuts_and_reports_and_a_second_one_has_nothing_to_do(tmp_path, journal_directory):
    journal = open_journal(tmp_path)
    fill(journal, 60, size=1_000)
    journal.finish_sealed()
    sealed, last = journal.segments()[0], journal.segments()[-1]
    kill(journal)
    flip(sealed.path, HEADER_SIZE + 100)
    flip(last.path, last.nbytes - 10)
    with pytest.raises(OperatorError, match="journal_behind"):
        inspect.repair_journal(*journal_directory)
    report = inspect.repair_journal(*journal_directory, accept=True)
    assert report["truncated_bytes"] > 0
    assert report["rebuilt_indexes"] == [sealed.name]
    assert load_sidecar(index_path(sealed.path), INSTANCE, 1).holes[0].last_sequence == 3
    again = inspect.repair_journal(*journal_directory)
    assert (again["truncated_bytes"], again["rebuilt_indexes"], again["set_aside"]) == (0, [], [])
    opened = open_journal(tmp_path)
    assert read_all(opened) == list(range(4, 178))
    opened.close()


def test_repair_is_refused_while_a_broker_runs(tmp_path, journal_directory):
    journal = open_journal(tmp_path)
    with pytest.raises(OperatorError, match="journal_locked"):
        inspect.repair_journal(*journal_directory)
    journal.close()


def test_no_journal_there(tmp_path):
    with pytest.raises(OperatorError, match="no_journal"):
        inspect.list_segments(tmp_path / "absent", "x")
