"""Archive, compress and remove while readers go on: the worker's heavy part and the broker's swap
together.
"""

from __future__ import annotations

import errno
import gzip
import subprocess
from threading import Event, Thread

import pytest

from broker_core.errors import JournalError, OperatorError
from broker_core.journal.journal import Journal
from broker_core.journal.open_segments import Segment
from broker_core.journal.segment import HEADER_SIZE, BatchPosition, index_path
from broker_core.journal.segment_copies import compress_segment, copy_segment, verify_segment
from broker_core.journal.segment_index import MissingRange

from .support import INSTANCE, SMALL, FailingFiles, fill, flip, open_journal, read_all

EVERYTHING = list(range(1, 241))


@pytest.fixture
def journal(tmp_path):
    made = open_journal(tmp_path, files=FailingFiles())
    fill(made, 80, size=1_000)
    made.finish_sealed()
    yield made
    made.close()


def archive(journal, tmp_path, name):
    source = next(segment.path for segment in journal.segments() if segment.name == name)
    prepared = tmp_path / "archive" / "prepared" / name
    prepared.parent.mkdir(exist_ok=True)
    copy_segment(source, prepared)
    return journal.archive_swap(name, prepared)


def compress(journal, tmp_path, name):
    source = next(segment.path for segment in journal.segments() if segment.name == name)
    prepared = source.parent / "prepared.gz"
    compress_segment(source, prepared)
    return journal.compress_swap(name, prepared)


@pytest.mark.parametrize("actions", [[archive], [compress], [archive, compress], [compress, archive]])
def test_moved_segments_stay_part_of_the_log(journal, tmp_path, actions):
    positions = [position for position, _ in journal.read_with_positions(1, 10**6, 240)]
    for action in actions:
        for segment in journal.segments()[:-1]:
            action(journal, tmp_path, segment.name)
    assert read_all(journal) == EVERYTHING
    for sequence in (1, 7, 50, 120, 200, 240):
        assert read_all(journal, sequence)[-1] == 240
        assert journal.sequence_at(sequence * 1_000 - 2_000) <= sequence
    for position in positions:
        assert journal.read_at(position, 4_096).nbytes
    for segment in journal.segments()[:-1]:
        assert segment.state == ("archived" if archive in actions else "sealed")
        assert segment.compressed == (compress in actions)


def test_the_bytes_from_a_record_on_are_those_of_its_segment_and_of_all_behind_it(journal, tmp_path):
    def agrees():
        found = {sequence: journal.bytes_pinned_from(sequence) for sequence in range(242)}
        infos = journal.segments()
        assert found == {at: sum(one.nbytes for one in infos if one.last_sequence >= at) for at in range(242)}
        assert found[241] == 0 < found[240] < found[1]
        return found[1]

    sizes = [agrees()]
    first, second = (segment.name for segment in journal.segments()[:2])
    compress(journal, tmp_path, first)
    sizes.append(agrees())
    archive(journal, tmp_path, second)
    sizes.append(agrees())
    journal.remove([f"{first}.gz"])
    sizes.append(agrees())
    assert sizes[0] > sizes[1] == sizes[2] > sizes[3]


@pytest.mark.parametrize("actions", [[archive], [compress], [archive, compress], [compress, archive]])
def test_moved_segments_are_found_again(journal, tmp_path, actions):
    for action in actions:
        for segment in journal.segments()[:-1]:
            action(journal, tmp_path, segment.name)
    journal.close()
    again = open_journal(tmp_path)
    assert again.recovery.clean
    assert again.recovery.scanned_segments == 1
    assert read_all(again) == EVERYTHING
    for path in (tmp_path / "archive").glob("*.index.gz"):
        path.unlink()
    again.close()
    rebuilt = open_journal(tmp_path)
    assert rebuilt.recovery.clean
    assert read_all(rebuilt) == EVERYTHING
    rebuilt.close()


def test_swap_under_a_reader(journal, tmp_path):
    """Readers in a thread go on, from every start, while each segment is archived and then compressed."""
    stop, problems, rounds = Event(), [], []

    def reading():
        start = 1
        while not stop.is_set():
            try:
                assert read_all(journal, start, 7_000)[-1] == 240
            except Exception as error:
                problems.append(error)
            start = start % 240 + 1
            rounds.append(start)

    reader = Thread(target=reading)
    reader.start()
    try:
        names = [segment.name for segment in journal.segments()[:-1]]
        for action in (archive, compress):
            for name in names:
                action(journal, tmp_path, name)
        while len(rounds) < 20 and not problems:
            stop.wait(0.01)
    finally:
        stop.set()
        reader.join()
    assert problems == []
    assert read_all(journal) == EVERYTHING


def test_batches_read_before_a_swap_stay_whole_after_it(journal, tmp_path):
    before = journal.read(1, 10_000, 240)
    archive(journal, tmp_path, journal.segments()[0].name)
    assert [record.sequence for batch in before for record in batch.records()][:3] == [1, 2, 3]


def test_durable_order_of_a_swap(journal, tmp_path):
    """New name, its directory synced, sidecar, and only then is the old file unlinked."""
    name = journal.segments()[0].name
    journal._files.calls.clear()
    archive(journal, tmp_path, name)
    order = [call for call in journal._files.calls if call[0] in ("rename", "sync_directory", "unlink")]
    sidecar = index_path(journal.segments()[0].path).name
    assert order == [
        ("rename", name),
        ("sync_directory", "archive"),
        ("rename", sidecar),
        ("sync_directory", "archive"),
        ("unlink", name),
        ("unlink", sidecar),
        ("sync_directory", "journal"),
    ]


def test_a_swap_cut_short_by_a_crash_is_undone(journal, tmp_path):
    segment = journal.segments()[0]
    copy_segment(segment.path, tmp_path / "archive" / segment.name)
    journal.close()
    again = open_journal(tmp_path)
    assert not (tmp_path / "archive" / segment.name).exists()
    assert "wasn't finished" in again.recovery.reason
    assert read_all(again) == EVERYTHING
    again.close()


def test_zcat_gives_the_segment(journal, tmp_path):
    segment = journal.segments()[0]
    raw = segment.path.read_bytes()
    compress_segment(segment.path, tmp_path / "x.gz")
    assert gzip.decompress((tmp_path / "x.gz").read_bytes()) == raw
    assert subprocess.run(["zcat", str(tmp_path / "x.gz")], capture_output=True, check=True).stdout == raw
    assert (tmp_path / "x.gz").stat().st_size < len(raw)


def test_damaged_member_of_a_compressed_segment_is_a_hole(journal, tmp_path, monkeypatch):
    monkeypatch.setattr("broker_core.journal.segment_copies.MEMBER_SIZE", 10_000)
    name = journal.segments()[0].name
    compress(journal, tmp_path, name)
    segment = journal.segments()[0]
    members = journal._log._sources.get(journal._log.segments[0]).members
    assert len(members) > 3
    for place in (members[2].offset + 50, members[4].offset + 1):
        flip(segment.path, place)
    journal._log._sources.clear()
    found = read_all(journal)
    holes = journal.missing_ranges
    assert len(holes) == 2
    missing = {s for hole in holes for s in range(hole.first_sequence, hole.last_sequence + 1)}
    assert found == [sequence for sequence in EVERYTHING if sequence not in missing]
    assert not verify_segment(segment.path).is_ok


def test_compressing_a_damaged_segment_keeps_the_damaged_bytes(journal, tmp_path):
    segment = journal.segments()[0]
    flip(segment.path, HEADER_SIZE + 4_000)
    raw = segment.path.read_bytes()
    compress(journal, tmp_path, segment.name)
    assert gzip.decompress(journal.segments()[0].path.read_bytes()) == raw
    assert len(read_all(journal)) == 237
    assert len(journal.missing_ranges) == 1


@pytest.mark.parametrize("wrong", ["other", "short", "nonsense", "absent"])
def test_a_wrong_prepared_file_is_refused_and_changes_nothing(journal, tmp_path, wrong):
    first, second = journal.segments()[:2]
    prepared = tmp_path / "archive" / "prepared"
    if wrong == "other":
        copy_segment(second.path, prepared)
    elif wrong == "short":
        prepared.write_bytes(first.path.read_bytes()[:-8])
    elif wrong == "nonsense":
        prepared.write_bytes(b"?" * first.nbytes)
    with pytest.raises(OperatorError) as caught:
        journal.archive_swap(first.name, prepared)
    assert caught.value.code == "bad_prepared_file"
    assert read_all(journal) == EVERYTHING
    assert journal.segments()[0].state == "sealed"


def test_refusals(journal, tmp_path):
    current = journal.segments()[-1].name
    sealed = journal.segments()[0].name
    for call, code in (
        (lambda: journal.archive_swap(current, tmp_path), "journal_current"),
        (lambda: journal.compress_swap("nothing", tmp_path), "unknown_journal"),
        (lambda: journal.remove([journal.segments()[1].name]), "journal_gap"),
        (lambda: journal.remove([]), "journal_gap"),
        (lambda: journal.remove([segment.name for segment in journal.segments()]), "journal_current"),
    ):
        with pytest.raises(OperatorError) as caught:
            call()
        assert caught.value.code == code
    archive(journal, tmp_path, sealed)
    with pytest.raises(OperatorError, match="journal_archived"):
        journal.archive_swap(sealed, tmp_path)
    compress(journal, tmp_path, sealed)
    with pytest.raises(OperatorError, match="journal_compressed"):
        journal.compress_swap(f"{sealed}.gz", tmp_path)


def test_without_an_archive_nothing_is_archived(tmp_path):
    alone = Journal.open(tmp_path, INSTANCE, None, SMALL)
    fill(alone, 40, size=1_000)
    alone.finish_sealed()
    with pytest.raises(OperatorError, match="no_archive"):
        alone.archive_swap(alone.segments()[0].name, tmp_path / "prepared")
    alone.close()


def test_what_cannot_be_noted_is_not_removed(journal):
    journal.files.fail = lambda name: name == "rename"
    journal.files.errno = errno.EIO
    before = journal.segments()
    with pytest.raises(JournalError, match="the note of what is removed"):
        journal.remove([before[0].name])
    journal.files.fail = lambda name: False
    assert journal.segments() == before and read_all(journal) == EVERYTHING
    assert journal.remove([before[0].name]).first_held == before[1].first_sequence


@pytest.mark.parametrize("call", ["unlink", "sync_directory"])
def test_a_removal_that_the_disk_refuses_says_so_and_what_is_left_has_no_gap(journal, call):
    before, calls = journal.segments(), []
    # The first directory that is synced is that of the note.
    journal.files.fail = lambda name: name == call and not calls.append(name) and len(calls) > 1
    journal.files.errno = errno.EIO
    with pytest.raises(JournalError, match="the removal of") as caught:
        journal.remove([one.name for one in before[:3]])
    journal.files.fail = lambda name: False
    assert before[0].name in caught.value.sentence
    assert [one.path.exists() for one in before[:3]] == [False, True, True], "the oldest went first"
    assert journal.segments() == before[3:], "nobody is served what was to go"


def test_pins_hold_back_removal(journal):
    first, second = journal.segments()[:2]
    pin = journal.pin(5, "slow")
    with pytest.raises(OperatorError) as caught:
        journal.remove([first.name])
    assert caught.value.details["needed_by"] == ["slow"]
    pin.move(2)
    assert pin.sequence == 5
    pin.move(second.first_sequence)
    assert journal.remove([first.name]).names == [first.name]
    with pytest.raises(OperatorError):
        journal.remove([second.name])
    pin.release()
    pin.release()
    assert journal.pins() == []
    journal.remove([second.name])
    assert not first.path.exists()
    assert not index_path(first.path).exists()


def test_a_reader_goes_on_over_a_removal_further_back(journal):
    journal.remove([journal.segments()[0].name])
    first = journal.first_sequence
    assert read_all(journal) == list(range(first, 241))
    with pytest.raises(JournalError, match="bookmark_gone"):
        journal.read_at(BatchPosition(1, HEADER_SIZE), 100)


def test_cancelling_removes_the_unfinished_file(journal, tmp_path):
    def cancel(done, total):
        raise KeyboardInterrupt

    for work in (copy_segment, compress_segment):
        with pytest.raises(KeyboardInterrupt):
            work(journal.segments()[0].path, tmp_path / "x", cancel)
        assert not (tmp_path / "x").exists()


def test_progress_reaches_the_whole(journal, tmp_path):
    for work in (copy_segment, compress_segment):
        steps: list[tuple[int, int]] = []
        work(journal.segments()[0].path, tmp_path / "x", lambda *step, seen=steps: seen.append(step))
        assert steps[-1][0] == steps[-1][1] == journal.segments()[0].nbytes


def test_verify_of_a_sealed_segment(journal):
    segment = journal.segments()[0]
    assert verify_segment(segment.path).is_ok
    flip(segment.path, segment.nbytes - 20)
    report = verify_segment(segment.path)
    assert not report.is_ok
    assert isinstance(report.holes[0], MissingRange)
    assert report.holes[0].last_sequence == segment.last_sequence
    assert report.as_dict()["ok"] is False


def test_a_segment_object_is_replaced_not_changed(journal, tmp_path):
    before: tuple[Segment, ...] = journal._log.segments
    archive(journal, tmp_path, journal.segments()[0].name)
    assert before[0].path.parent.name == "journal"
    assert journal._log.segments[0].index is before[0].index


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [(errno.EIO, JournalError, "journal_failed"), (errno.EXDEV, OperatorError, "bad_prepared_file")],
)
def test_a_swap_that_the_disk_refuses_says_so_and_changes_nothing(journal, tmp_path, number, kind, code):
    first = journal.segments()[0]
    prepared = tmp_path / "archive" / "prepared"
    copy_segment(first.path, prepared)
    files = journal._files
    files.errno, files.fail = number, lambda name: name == "rename"
    with pytest.raises(kind) as caught:
        journal.archive_swap(first.name, prepared)
    files.fail = lambda name: False
    assert caught.value.code == code
    assert first.path.exists()
    assert journal.segments()[0].state == "sealed"
    assert read_all(journal) == EVERYTHING
