"""Cache files that may be deleted while the broker is down: the cost of opening without them, and their
return.
"""

from __future__ import annotations

import shutil

import pytest

from broker_core.journal import open_segments
from broker_core.journal import publishers as publishers_module
from broker_core.journal.index_sidecar import (
    SUMMARY_END,
    decode_sidecar,
    encode_sidecar,
    load_positions,
    load_sidecar,
    load_summary,
)
from broker_core.journal.journal import Journal, JournalOptions
from broker_core.journal.publisher_sequences import publisher_sequences_path, read_publisher_sequences
from broker_core.journal.publishers import Publishers, SessionNumber
from broker_core.journal.segment_index import SegmentIndex
from tests.support.call_counts import counting_calls

from .support import INSTANCE, SMALL, batch_for, fill, flip, open_journal, read_all

EVERYTHING = list(range(1, 241))


@pytest.fixture
def closed(tmp_path):
    """A journal of several sealed segments and a current one, closed."""
    journal = open_journal(tmp_path)
    fill(journal, 40, size=1_000, publisher="anna")
    fill(journal, 40, size=1_000, publisher="bert")
    journal.close()
    return tmp_path / "journal"


def test_opening_reads_the_last_segment_alone(closed, tmp_path):
    journal = open_journal(tmp_path)
    assert journal.recovery.scanned_segments == 1
    assert len(journal.segments()) > 3
    assert [segment.index.has_entries for segment in journal._log.segments[:-1]] == [False] * (
        len(journal.segments()) - 1
    )
    assert read_all(journal) == EVERYTHING
    journal.close()


@pytest.mark.parametrize("pattern", ["*.clients.ack", "*.index.gz", "*.ack", "*.gz"])
def test_what_was_deleted_is_rebuilt(closed, tmp_path, pattern):
    before = {path.name: path.read_bytes() for path in closed.glob("*") if path.match("*.index.gz")}
    for path in closed.glob(pattern):
        path.unlink()
    journal = open_journal(tmp_path)
    assert journal.recovery.clean
    assert read_all(journal) == EVERYTHING
    assert journal.publishers.numbers() == {"anna": 120, "bert": 240}
    # Rebuilt at once and not at closing: a broker that is killed again and again reads the log once.
    assert read_publisher_sequences(publisher_sequences_path(closed, INSTANCE)) is not None
    shutil.copytree(closed, tmp_path / "killed" / "journal")
    journal.close()
    assert {path.name: path.read_bytes() for path in closed.glob("*.index.gz")} == before
    again = open_journal(tmp_path / "killed")
    assert again.recovery.scanned_segments == 1
    assert again.publishers.numbers() == {"anna": 120, "bert": 240}
    again.close()


def test_a_sidecar_damaged_behind_its_summary_is_noticed_when_it_is_needed(closed, tmp_path):
    sidecar = sorted(closed.glob("*.index.gz"))[0]
    flip(sidecar, SUMMARY_END + 9)  # the places
    flip(sidecar, sidecar.stat().st_size - 20)  # the document
    journal = open_journal(tmp_path)
    assert journal.recovery.scanned_segments == 1
    assert read_all(journal, 4) == EVERYTHING[3:]
    assert journal.sequence_at(10_000) == 10
    journal.close()


def test_a_sidecar_that_goes_while_the_broker_runs_costs_a_scan(closed, tmp_path):
    journal = open_journal(tmp_path)
    for path in closed.glob("*.index.gz"):
        path.unlink()
    assert read_all(journal, 4) == EVERYTHING[3:]
    journal.close()


def test_a_sidecar_that_was_cut_short_has_no_summary(tmp_path):
    path = tmp_path / "x.index.gz"
    whole = encode_sidecar(SegmentIndex("a", 5, 2))
    for length in (0, 10, SUMMARY_END, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert load_summary(path, "a", 5) is None
    path.write_bytes(whole)
    assert load_summary(path, "a", 5).first_sequence == 5
    assert load_summary(path, "b", 5) is None
    assert load_summary(path, "a", 6) is None


def test_golden_bytes_of_the_summary():
    raw = encode_sidecar(SegmentIndex("a", 5, 2))
    assert raw[: SUMMARY_END + 8].hex() == (
        "1f8b08040000000000ff6c0053495000bea6b6a400000000020000000000000040f89e395b66422f"
        "05000000000000000010000000000000000000000000000004000000000000000000000000000000"
        "00000000000000000d010000000000005350040000000000"
    )
    assert decode_sidecar(raw).first_sequence == 5


def test_a_seek_reads_places_and_not_the_document(closed, tmp_path):
    sidecars = sorted(closed.glob("*.index.gz"))
    for sidecar in sidecars:
        flip(sidecar, sidecar.stat().st_size - 20)
        assert load_sidecar(sidecar, INSTANCE, int(sidecar.name.split(".")[1])) is None
    journal = open_journal(tmp_path)
    assert read_all(journal, 4) == EVERYTHING[3:]
    assert [segment.index.has_entries for segment in journal._log.segments] == [True] * len(
        journal._log.segments
    )
    assert not any(segment.index.is_complete for segment in journal._log.segments[:-1])
    journal.close()


def test_a_long_index_stores_only_some_positions(tmp_path, monkeypatch):
    monkeypatch.setattr("broker_core.journal.index_sidecar.MAX_POSITIONS", 3)
    journal = open_journal(tmp_path, JournalOptions(1024 * 1024, 1))
    index = journal_of_one(journal)
    assert len(index.entries()) > 10
    path = tmp_path / "x.index.gz"
    path.write_bytes(encode_sidecar(index))
    found = load_positions(path, INSTANCE, 1)
    assert [len(column) for column in found.sample_positions(100)] == [3, 3, 3]
    for sequence in range(1, index.last_sequence, 37):
        assert found.find(sequence)[0] <= index.find(sequence)[0]
    whole = load_sidecar(path, INSTANCE, 1)
    assert whole.entries() == index.entries()
    journal.close()


def journal_of_one(journal):
    """The index of a segment with many entries."""
    fill(journal, 200, size=1_000, count=4)
    return journal._log.segments[0].index


def test_entries_go_with_the_open_file(tmp_path, monkeypatch):
    monkeypatch.setattr(open_segments, "MAX_OPEN_SOURCES", 2)
    journal = open_journal(tmp_path)
    fill(journal, 80, size=1_000)
    journal.finish_sealed()
    assert read_all(journal) == EVERYTHING
    assert sum(segment.index.has_entries for segment in journal._log.segments) <= 3
    journal.close()


def test_the_publishers_that_published_last_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(publishers_module, "MAX_PUBLISHERS", 3)
    journal = open_journal(tmp_path)
    for publisher in ("a", "b", "c", "a", "d"):
        journal.write([batch_for(journal, journal.next_sequence, publisher=publisher)])
    assert list(journal.publishers) == [], "not before they are durable"
    journal.sync()
    assert list(journal.publishers) == ["c", "a", "d"]
    journal.close()
    again = open_journal(tmp_path)
    again.write([batch_for(again, again.next_sequence, publisher="e")])
    again.sync()
    assert list(again.publishers) == ["a", "d", "e"]
    again.close()


def test_noting_a_publisher_again_makes_it_the_newest():
    publishers = Publishers()
    for name, session, number in (("a", 1, 1), ("b", 1, 2), ("a", 1, 7)):
        publishers.note(name, session, number)
    assert list(publishers.items()) == [("b", (SessionNumber(1, 2),)), ("a", (SessionNumber(1, 7),))]


@pytest.mark.parametrize("other", ["b", "sluice-t.spare", "sluice-t.1", "sluice", "sluice-t.x"])
def test_instances_that_share_a_directory_touch_their_own_files_only(tmp_path, other):
    """Also if one name is a prefix of the other, or looks like one of its files."""
    options = JournalOptions(64 * 1024, 1)
    mine = open_journal(tmp_path, options)
    theirs = Journal.open(tmp_path / "journal", other, tmp_path / "archive", options)
    for journal in (mine, theirs):
        fill(journal, 80, size=1_000)
        journal.preallocate()
        journal.close()
    before = contents(tmp_path / "journal", other)
    again = open_journal(tmp_path, options)
    assert again.recovery.ignored == []
    again.remove([segment.name for segment in again.segments()[:2]])
    again.preallocate()
    again.close()
    assert contents(tmp_path / "journal", other) == before
    back = Journal.open(tmp_path / "journal", other, tmp_path / "archive", options)
    assert back.recovery.clean
    assert read_all(back) == EVERYTHING
    back.close()


def contents(directory, instance):
    """Return name and bytes of all files that a journal of this name has made."""
    owned = [
        path
        for path in directory.iterdir()
        if (
            path.name.startswith(f"{instance}.")
            and path.name.removeprefix(f"{instance}.").split(".")[0]
            in ("lock", "durable", "clients", "spare")
        )
        or path.name.removeprefix(f"{instance}.")[:20].isdigit()
    ]
    assert len(owned) > 8
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in owned}


def test_a_thousand_segments_open_without_being_read(tmp_path):
    options = SMALL
    journal = open_journal(tmp_path, options)
    while len(journal.segments()) < 1_000:
        first = journal.next_sequence
        journal.write([batch_for(journal, first + 30 * n, 30, size=2_000) for n in range(8)])
        journal.finish_sealed()
    newest = journal.next_sequence
    journal.close()
    with counting_calls() as number:
        journal = open_journal(tmp_path, options)
    assert journal.recovery.scanned_segments == 1
    assert journal.next_sequence == newest
    journal.close()
    assert number() < 500 * 1_000, "some hundred calls a segment, whatever is in it"


def test_other_sizes_are_used_from_the_next_segment_on(tmp_path):
    journal = open_journal(tmp_path, JournalOptions(64 * 1024, 2))
    journal.preallocate()
    fill(journal, 10, size=1_000)
    journal.set_options(JournalOptions(128 * 1024, 1))
    fill(journal, 60, size=1_000)
    assert journal.preallocate() == 1
    spares = [path.stat().st_size for path in (tmp_path / "journal").glob("*.spare.*")]
    assert spares == [128 * 1024]
    fill(journal, 60, size=1_000)
    journal.finish_sealed()
    assert any(segment.nbytes > 100 * 1024 for segment in journal.segments())
    assert read_all(journal) == list(range(1, 391))
    journal.close()
