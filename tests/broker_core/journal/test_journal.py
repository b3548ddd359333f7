"""Writing, rolling, reading back, publishers, pins and the lock, on an undamaged disk."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch
from broker_core.errors import JournalError, OperatorError
from broker_core.journal import preallocation
from broker_core.journal.frontier_file import read_frontier
from broker_core.journal.journal import SPARE_STEP_PAUSE_S, Journal, JournalOptions
from broker_core.journal.publisher_sequences import read_publisher_sequences
from broker_core.journal.publishers import SessionNumber
from broker_core.journal.segment import BatchPosition

from .support import (
    INSTANCE,
    SMALL,
    FailingFiles,
    accept,
    batch_for,
    fill,
    open_journal,
    read_all,
    topics_batch,
)


@pytest.fixture
def journal(tmp_path):
    made = open_journal(tmp_path)
    yield made
    made.close()


def test_what_is_written_is_read_back_as_the_same_bytes(journal):
    written = fill(journal, 5)
    read = journal.read(1, 1_000_000, journal.durable_sequence)
    assert [bytes(batch.buf) for batch in read] == [bytes(batch.buf) for batch in written]


def test_an_empty_journal(journal):
    assert (journal.first_sequence, journal.next_sequence, journal.durable_sequence) == (1, 1, 0)
    assert journal.read(1, 100, 100) == []
    assert journal.segments() == []
    assert journal.recovery.clean


def test_many_batches_are_one_system_call(tmp_path):
    files = FailingFiles()
    journal = open_journal(tmp_path, JournalOptions(4 * 1024 * 1024, 1), files)
    fill(journal, 1)
    batches, first = [], journal.next_sequence
    for _ in range(1_500):
        batches.append(batch_for(journal, first, 1))
        first += 1
    files.calls.clear()
    positions = journal.write(batches)
    assert [name for name, _ in files.calls] == ["pwritev", "pwritev"]
    assert read_all(journal, journal.durable_sequence + 1) == []
    assert journal.read_at(positions[-1], batches[-1].nbytes).first_sequence == batches[-1].first_sequence
    journal.close()


def test_positions_lead_to_the_batches(journal):
    batches = [batch_for(journal, 1), batch_for(journal, 4), batch_for(journal, 7, 1)]
    positions = journal.write(batches)
    for position, batch in zip(positions, batches, strict=True):
        assert bytes(journal.read_at(position, batch.nbytes).buf) == bytes(batch.buf)
    located = journal.read_with_positions(4, 1_000, 7)
    assert [position for position, _ in located] == positions[1:]


def test_a_span_is_every_batch_in_it_up_to_the_first_that_is_damaged(journal):
    batches = [batch_for(journal, 1), batch_for(journal, 4), batch_for(journal, 7, 1)]
    positions = journal.write(batches)
    length = positions[-1].offset + batches[-1].nbytes - positions[0].offset
    found = journal.read_span(positions[0], length)
    assert [offset for offset, _ in found] == [position.offset for position in positions]
    assert [bytes(batch.buf) for _, batch in found] == [bytes(batch.buf) for batch in batches]
    assert len(journal.read_span(positions[1], batches[1].nbytes)) == 1
    path = journal.segments()[-1].path
    with path.open("r+b") as file:
        file.seek(positions[1].offset + 100)
        file.write(b"\xff\xff")
    assert [offset for offset, _ in journal.read_span(positions[0], length)] == [positions[0].offset]
    with pytest.raises(JournalError, match="journal_damaged"):
        journal.read_span(positions[1], batches[1].nbytes)


def test_a_position_that_leads_nowhere(journal):
    fill(journal, 1)
    with pytest.raises(JournalError, match="bookmark_gone"):
        journal.read_at(BatchPosition(77, 4_096), 100)
    with pytest.raises(JournalError, match="journal_damaged"):
        journal.read_at(BatchPosition(1, 4_104), 100)


def test_a_read_starts_with_the_batch_that_holds_the_sequence(journal):
    fill(journal, 3)
    assert journal.read(5, 1, 9)[0].first_sequence == 4


def test_a_read_gives_one_batch_even_if_it_is_larger_than_asked(journal):
    fill(journal, 2, count=50, size=400)
    assert [batch.first_sequence for batch in journal.read(1, 10, 100)] == [1]


def test_a_read_ends_at_the_frontier(journal):
    fill(journal, 2)
    journal.write([batch_for(journal, 7)])
    assert read_all(journal) == [1, 2, 3, 4, 5, 6]
    assert [batch.first_sequence for batch in journal.read(1, 10_000, 5)] == [1]
    journal.sync()
    assert read_all(journal)[-1] == 9


def test_zeros_of_the_preallocated_file_are_never_data(journal):
    fill(journal, 1)
    assert journal.segments()[0].path.stat().st_size == SMALL.segment_size
    assert journal.read(4, 100_000, 100) == []


def test_roll(journal):
    fill(journal, 60, size=1_000)
    segments = journal.segments()
    assert len(segments) > 2
    assert [segment.state for segment in segments][-1] == "current"
    for earlier, later in pairwise(segments):
        assert later.first_sequence == earlier.last_sequence + 1
    assert read_all(journal) == list(range(1, 181))


def test_a_full_segment_is_cut_to_its_content(journal):
    fill(journal, 60, size=1_000)
    journal.finish_sealed()
    for segment in journal.segments()[:-1]:
        assert segment.state == "sealed"
        assert segment.path.stat().st_size == segment.nbytes


def test_one_write_may_fill_several_segments(journal):
    batches, first = [], 1
    for _ in range(100):
        batches.append(batch_for(journal, first, size=1_000))
        first += 3
    positions = journal.write(batches)
    journal.sync()
    assert len({position.segment for position in positions}) > 3
    assert read_all(journal) == list(range(1, 301))


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(journal):
    fill(journal, 1)
    fill(journal, 1, count=100, size=1_000)
    fill(journal, 1)
    assert [segment.records for segment in journal.segments()] == [3, 100, 3]
    assert read_all(journal) == list(range(1, 107))


def test_spares_are_made_in_advance_and_used(tmp_path):
    journal = open_journal(tmp_path, JournalOptions(64 * 1024, 2))
    assert journal.preallocate() == 2
    assert journal.preallocate() == 0
    spares = sorted(path.name for path in (tmp_path / "journal").glob("*.spare.*"))
    assert spares == [f"{INSTANCE}.spare.1", f"{INSTANCE}.spare.2"]
    fill(journal, 1)
    assert len(list((tmp_path / "journal").glob("*.spare.*"))) == 1
    assert journal.preallocate() == 1
    assert read_all(journal) == [1, 2, 3]
    journal.close()


STEPS = 4


@pytest.fixture
def preparation_pauses(tmp_path, monkeypatch):
    """A journal whose spare files take four steps to prepare, and the pauses between them, in seconds."""
    journal = open_journal(tmp_path, JournalOptions(STEPS * preallocation.STEP, 1))
    rested = []
    wait = journal._closing.wait
    monkeypatch.setattr(journal._closing, "wait", lambda seconds: rested.append(seconds) or wait(0))
    yield journal, rested
    journal.close()


def test_the_disk_is_left_to_others_between_two_steps_of_making_a_spare(preparation_pauses):
    journal, rested = preparation_pauses
    assert journal.preallocate() == 1
    assert rested == [SPARE_STEP_PAUSE_S] * STEPS


def test_a_spare_file_needed_soon_is_made_without_pauses(preparation_pauses):
    journal, rested = preparation_pauses
    fill(journal, 1, size=2 * preallocation.STEP)
    assert journal.preallocate() == 1
    assert rested == [0] * STEPS


def test_closing_ends_the_making_of_a_spare_and_leaves_nothing_of_it(preparation_pauses, monkeypatch):
    journal, _ = preparation_pauses
    monkeypatch.setattr(journal._closing, "wait", lambda seconds: True)
    assert journal.preallocate() == 0
    assert list(journal.directory.glob("*.spare.*")) == []


def test_waiters_for_the_disk_are_notified_before_the_frontier_file_changes(journal):
    said = []

    def on_durable():
        said.append((journal.durable_sequence, read_frontier(journal.directory, INSTANCE)))

    for _ in range(2):
        journal.write([batch_for(journal, journal.next_sequence)])
        journal.sync(on_durable)
    journal.sync(on_durable)
    assert said == [(3, 0), (6, 3), (6, 6)], "also when there is nothing to do"


def test_spares_left_by_an_earlier_run_are_used_if_they_fit(tmp_path):
    journal = open_journal(tmp_path, JournalOptions(64 * 1024, 2))
    journal.preallocate()
    journal.close()
    (tmp_path / "journal" / f"{INSTANCE}.spare.3.tmp").write_bytes(b"half")
    assert open_and_close(tmp_path, JournalOptions(64 * 1024, 2)) == 0
    assert open_and_close(tmp_path, JournalOptions(128 * 1024, 1)) == 1
    assert [p.name for p in (tmp_path / "journal").glob("*.spare.*")] == [f"{INSTANCE}.spare.1"]


def open_and_close(tmp_path, options):
    journal = open_journal(tmp_path, options)
    made = journal.preallocate()
    journal.close()
    return made


def test_batches_out_of_sequence_are_refused(journal):
    fill(journal, 1)
    with pytest.raises(ValueError, match="expected"):
        journal.write([batch_for(journal, 9)])
    assert read_all(journal) == [1, 2, 3]


def test_going_on_after_a_restart(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 10)
    epoch = journal.epoch
    journal.close()
    again = open_journal(tmp_path)
    assert (again.next_sequence, again.durable_sequence, again.epoch) == (31, 30, epoch + 1)
    assert again.recovery.clean
    assert again.recovery.kept_records == 30
    fill(again, 10)
    assert read_all(again) == list(range(1, 61))
    assert len(again.segments()) == 1
    again.close()


def test_the_frontier_is_visible_to_other_processes(journal, tmp_path):
    fill(journal, 2)
    journal.write([batch_for(journal, 7)])
    assert read_frontier(tmp_path / "journal", INSTANCE) == 6
    journal.sync()
    assert read_frontier(tmp_path / "journal", INSTANCE) == 9


def test_a_second_journal_in_the_directory_is_refused(journal, tmp_path):
    with pytest.raises(OperatorError) as caught:
        open_journal(tmp_path)
    assert caught.value.code == "journal_locked"
    assert caught.value.details["pid"] == str(os.getpid())


def test_two_instances_share_a_directory(journal, tmp_path):
    fill(journal, 1)
    other = Journal.open(tmp_path / "journal", "other", tmp_path / "archive", SMALL)
    assert other.next_sequence == 1
    assert other.recovery.ignored == []
    other.close()


def test_publishers_are_recovered_with_and_without_their_file(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 30, size=1_000, publisher="anna")
    fill(journal, 30, size=1_000, publisher="bert")
    assert journal.publishers.numbers() == {"anna": 90, "bert": 180}
    journal.close()
    for remove in (False, True):
        if remove:
            (tmp_path / "journal" / f"{INSTANCE}.clients.ack").unlink()
        again = open_journal(tmp_path)
        assert again.publishers.numbers() == {"anna": 90, "bert": 180}
        assert again.recovery.clean
        again.close()


def test_publishers_in_a_file_older_than_the_log(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 60, size=1_000, publisher="anna")
    journal.finish_sealed()
    fill(journal, 1, publisher="bert")
    kill(journal)
    again = open_journal(tmp_path)
    assert again.publishers.numbers() == {"anna": 180, "bert": 181 + 2}
    assert again.recovery.scanned_segments == 1
    again.close()


def test_publishers_are_read_from_the_segments_once_and_from_their_file_from_then_on(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 30, size=1_000, publisher="anna")
    assert len(journal.segments()) == 2
    journal.close()
    file = tmp_path / "journal" / f"{INSTANCE}.clients.ack"
    file.unlink()
    again = open_journal(tmp_path)
    assert again.publishers.numbers() == {"anna": 90} and read_publisher_sequences(file) == (
        90,
        {"anna": (SessionNumber(0, 90),)},
    )
    again.close()


def kill(journal):
    """Release all resources as a killed process does, without finishing anything."""
    journal._appender.close()
    journal._log.close()
    journal._directory_lock.close()


def test_publishers_file_damaged_means_a_scan(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 60, size=1_000, publisher="anna")
    journal.close()
    (tmp_path / "journal" / f"{INSTANCE}.clients.ack").write_bytes(b"SLUICEA1 nonsense")
    again = open_journal(tmp_path)
    assert again.publishers.numbers() == {"anna": 180}
    again.close()


def test_unnumbered_publishers_are_not_noted(journal):
    journal.write([topics_batch(journal, ["a", "b", "a"])])
    assert journal.publishers.numbers() == {}


def test_a_moment_leads_to_the_first_record_at_or_after_it(journal):
    for first, at in ((1, 100), (4, 200), (7, 150), (10, 300)):  # the clock was set back once
        journal.write([batch_for(journal, first, at=at)])
    journal.sync()
    asked = {99: 1, 100: 1, 101: 4, 200: 4, 201: 10, 300: 10, 301: 13}
    assert {at: journal.sequence_at(at) for at in asked} == asked


def test_a_moment_in_a_later_segment(journal):
    fill(journal, 100, size=1_000)
    for sequence in (1, 100, 199, 298):
        assert journal.sequence_at(sequence * 1_000) == sequence


def test_older_than_the_log(journal):
    fill(journal, 60, size=1_000)
    journal.finish_sealed()
    first = journal.segments()[0]
    receipt = journal.remove([first.name])
    assert (receipt.first_sequence, receipt.last_sequence) == (1, first.last_sequence)
    with pytest.raises(JournalError) as caught:
        journal.read(1, 100, 100)
    assert caught.value.code == "bookmark_gone"
    assert caught.value.details["first"] == first.last_sequence + 1 == journal.first_sequence


def test_numbering_goes_on_when_every_segment_is_gone_and_an_operator_accepts_it(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 60, size=1_000)
    journal.close()
    for path in (tmp_path / "journal").glob("*.journal"):
        path.unlink()
    with pytest.raises(OperatorError) as caught:
        open_journal(tmp_path)
    assert (caught.value.code, caught.value.details) == ("journal_behind", {"found": 0, "acknowledged": 180})
    accept(tmp_path)
    again = open_journal(tmp_path)
    assert again.next_sequence == 181
    assert (again.identity, again.epoch) == (journal.identity, journal.epoch + 1)
    fill(again, 1)
    assert read_all(again) == [181, 182, 183]
    again.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), min_size=1, max_size=12),
    max_bytes=st.integers(1, 40_000),
    data=st.data(),
)
def test_law_reading_from_b_gives_everything_from_b_once_in_order(tmp_path_factory, counts, max_bytes, data):
    """For any batches, cuts into writes, read sizes and start: reads give every record from the start,
    once.
    """
    journal = open_journal(tmp_path_factory.mktemp("law"), JournalOptions(16 * 1024, 1))
    for group in counts:
        first, batches = journal.next_sequence, []
        for count in group:
            batches.append(batch_for(journal, first, count))
            first += count
        journal.write(batches)
    journal.sync()
    total = journal.durable_sequence
    start = data.draw(st.integers(1, total))
    found = read_all(journal, start, max_bytes)
    assert found[: len(found) - (total - start)][-1] == start
    assert found == list(range(found[0], total + 1))
    journal.close()


def test_reading_while_writing_sees_whole_batches_only(journal):
    seen: list[Batch] = []
    for _ in range(50):
        fill(journal, 3, size=700)
        start = seen[-1].last_sequence + 1 if seen else 1
        while batches := journal.read(start, 5_000, journal.durable_sequence):
            seen += batches
            start = seen[-1].last_sequence + 1
    assert [batch.first_sequence for batch in seen] == list(range(1, 451, 3))
