"""Opening a journal after a crash or on a bad disk.

One helper takes the corrupting function as parameter.
"""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest

from broker_core.errors import OperatorError
from broker_core.journal.frontier_file import KnownLog
from broker_core.journal.publisher_sequences import publisher_sequences_path, read_publisher_sequences
from broker_core.journal.segment import HEADER_SIZE, segment_name

from .support import INSTANCE, accept, batch_for, fill, flip, open_journal, read_all
from .test_journal import kill


def write_killed_journal(tmp_path, batches=20, **how):
    """Write a journal whose process is killed; return the path of its only segment and its batch offsets."""
    journal = open_journal(tmp_path)
    made = fill(journal, batches, **how)
    segment = journal.segments()[0]
    kill(journal)
    offsets = [HEADER_SIZE]
    for batch in made:
        offsets.append(offsets[-1] + batch.nbytes)
    return segment.path, offsets


def without_frontier(path):
    """Delete the durable frontier, as after a power loss before the last records were acknowledged."""
    (path.parent / f"{INSTANCE}.durable").unlink()


def cut_short(path, offsets):
    os.truncate(path, offsets[-1] - 50)


def cut_last_batch(path, offsets):
    with path.open("r+b") as file:
        file.seek(offsets[-1] - 50)
        file.write(bytes(50))


def header_only(path, offsets):
    with path.open("r+b") as file:
        file.seek(offsets[-2] + 96)
        file.write(bytes(offsets[-1] - offsets[-2] - 96))


def cut_last_header(path, offsets):
    with path.open("r+b") as file:
        file.seek(offsets[-2] + 40)
        file.write(bytes(offsets[-1] - offsets[-2] - 40))


def garbage(path, offsets):
    with path.open("r+b") as file:
        file.seek(offsets[-2])
        file.write(os.urandom(offsets[-1] - offsets[-2]))


@pytest.mark.parametrize("tear", [cut_short, cut_last_batch, header_only, cut_last_header, garbage])
def test_torn_tail_is_cut_and_kept_aside(tmp_path, tear):
    path, offsets = write_killed_journal(tmp_path)
    without_frontier(path)
    tear(path, offsets)
    torn = path.read_bytes()[offsets[-2] : offsets[-1]].rstrip(b"\0")
    journal = open_journal(tmp_path)
    report = journal.recovery
    assert journal.next_sequence == 58
    assert report.kept_records == 57
    assert report.truncated_bytes >= len(torn)
    assert report.quarantined == []
    assert [aside.name for aside in report.set_aside] == [f"{path.name}.torn.{offsets[-2]}"]
    assert report.set_aside[0].read_bytes().rstrip(b"\0") == torn
    assert f"cut at byte {offsets[-2]}" in report.reason
    fill(journal, 5)
    assert read_all(journal) == list(range(1, 73))
    journal.close()
    again = open_journal(tmp_path)
    assert again.recovery.clean
    assert read_all(again) == list(range(1, 73))
    again.close()


def test_persisted_records_that_are_gone_are_named_and_their_numbers_never_used_again(tmp_path):
    path, offsets = write_killed_journal(tmp_path)
    cut_short(path, offsets)
    before = path.read_bytes()
    with pytest.raises(OperatorError, match="journal_behind"):
        open_journal(tmp_path)
    assert path.read_bytes() == before, "nothing is changed of what is refused"
    accept(tmp_path)
    journal = open_journal(tmp_path)
    assert journal.next_sequence == 61
    assert journal.read(58, 1_000, journal.durable_sequence) == []
    assert journal.next_readable(58) == 61
    hole = journal.recovery.quarantined[0]
    assert (hole.first_sequence, hole.last_sequence) == (58, 60)
    fill(journal, 2)
    assert read_all(journal) == [*range(1, 58), *range(61, 67)]
    assert [(h.first_sequence, h.last_sequence) for h in journal.missing_ranges] == [(58, 60)]
    journal.close()


@pytest.mark.parametrize("inside", [0, 8, 30, 48, 100, 200])
def test_flipped_byte_in_the_middle_is_quarantined_and_reported(tmp_path, inside):
    path, offsets = write_killed_journal(tmp_path)
    flip(path, offsets[7] + inside)
    journal = open_journal(tmp_path)
    hole = journal.recovery.quarantined[0]
    assert (hole.offset, hole.length) == (offsets[7], offsets[8] - offsets[7])
    assert (hole.first_sequence, hole.last_sequence) == (22, 24)
    assert "22 to 24" in journal.recovery.reason
    assert journal.recovery.truncated_bytes == 0
    aside = path.with_name(f"{path.name}.damaged.{offsets[7]}")
    assert aside in journal.recovery.set_aside
    assert len(aside.read_bytes()) == hole.length
    assert read_all(journal) == [*range(1, 22), *range(25, 61)]
    # A read never goes over the hole in its middle: the jump shows at its start.
    assert journal.read(1, 1_000_000, 60)[-1].last_sequence == 21
    assert journal.read(22, 1_000_000, 60)[0].first_sequence == 25
    assert [journal.next_readable(sequence) for sequence in (21, 22, 24, 25)] == [21, 25, 25, 25]
    fill(journal, 1)
    journal.close()


def test_damage_found_while_running_is_a_hole_too(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 60, size=1_000)
    journal.finish_sealed()
    segment = journal.segments()[0]
    flip(segment.path, HEADER_SIZE + 5_000)
    found = read_all(journal)
    (hole,) = journal.missing_ranges
    assert hole.segment == segment.first_sequence
    missing = range(hole.first_sequence, hole.last_sequence + 1)
    assert found == [sequence for sequence in range(1, 181) if sequence not in missing]
    assert len(missing) == 3
    journal.close()


def test_the_last_batch_of_a_sealed_segment_damaged(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 60, size=1_000)
    journal.finish_sealed()
    segment = journal.segments()[0]
    flip(segment.path, segment.nbytes - 10)
    found = read_all(journal)
    assert [(h.first_sequence, h.last_sequence) for h in journal.missing_ranges] == [
        (segment.last_sequence - 2, segment.last_sequence)
    ]
    assert found == [s for s in range(1, 181) if not segment.last_sequence - 2 <= s <= segment.last_sequence]
    journal.close()


def test_bytes_of_a_batch_in_a_body_are_not_taken_for_one(tmp_path):
    from broker_core.batch import Batch, build_single_topic_batch

    journal = open_journal(tmp_path)
    fill(journal, 2)
    inner = bytes(batch_for(journal, 50).buf)
    whole = Batch.parse(build_single_topic_batch("p", "t", [b"x" * n + inner for n in range(8)], 7))
    whole.stamp(origin=journal.origin, epoch=journal.epoch, first_sequence=7, accepted_at=1)
    (position,) = journal.write([whole])
    fill(journal, 2)
    path = journal.segments()[0].path
    kill(journal)
    flip(path, position.offset + whole.nbytes - 5)
    again = open_journal(tmp_path)
    assert [(h.first_sequence, h.last_sequence) for h in again.recovery.quarantined] == [(7, 14)]
    assert read_all(again) == [*range(1, 7), *range(15, 21)]
    again.close()


def test_a_damaged_segment_header_is_rewritten(tmp_path):
    path, _ = write_killed_journal(tmp_path)
    flip(path, 20)
    journal = open_journal(tmp_path)
    assert "its header was restored" in journal.recovery.reason
    assert read_all(journal) == list(range(1, 61))
    assert path.with_name(f"{path.name}.header.0") in journal.recovery.set_aside
    journal.close()
    again = open_journal(tmp_path)
    assert again.recovery.clean
    again.close()


def test_zero_length_segment_is_set_aside(tmp_path):
    path, _ = write_killed_journal(tmp_path)
    empty = path.with_name(segment_name(INSTANCE, 61))
    empty.touch()
    journal = open_journal(tmp_path)
    assert [aside.name for aside in journal.recovery.set_aside] == [f"{empty.name}.empty"]
    fill(journal, 20, size=2_000)
    assert read_all(journal) == list(range(1, 121))
    journal.close()


def test_segment_of_zeros_is_set_aside(tmp_path):
    path, _ = write_killed_journal(tmp_path)
    path.with_name(segment_name(INSTANCE, 61)).write_bytes(bytes(64 * 1024))
    journal = open_journal(tmp_path)
    assert len(journal.recovery.set_aside) == 1
    assert journal.next_sequence == 61
    journal.close()


def test_foreign_files_are_left_alone_and_told(tmp_path):
    path, _ = write_killed_journal(tmp_path)
    (path.parent / "notes.txt").write_text("mine")
    (path.parent / f"{INSTANCE}.old").write_text("mine")
    (path.parent / "other.00000000000000000001.journal").write_bytes(b"not ours")
    (path.parent / "lost+found").mkdir()
    journal = open_journal(tmp_path)
    assert journal.recovery.ignored == [
        "lost+found",
        "notes.txt",
        f"{INSTANCE}.old",
    ]
    assert journal.recovery.clean
    assert (path.parent / "notes.txt").read_text() == "mine"
    journal.close()


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nowhere"), os.mkfifo])
@pytest.mark.parametrize("first", [61, 10**9])
def test_what_has_a_segments_name_and_is_no_file_is_left_alone_and_read_by_nobody(tmp_path, make, first):
    path, _ = write_killed_journal(tmp_path)
    foreign = path.with_name(segment_name(INSTANCE, first))
    make(foreign)
    mode = foreign.lstat().st_mode
    journal = open_journal(tmp_path)
    assert journal.recovery.clean and journal.next_sequence == 61
    assert read_all(journal) == list(range(1, 61))
    fill(journal, 10)
    assert read_all(journal) == list(range(1, 91))
    assert foreign.lstat().st_mode == mode
    journal.close()


def test_a_lost_sidecar_is_rebuilt(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 60, size=1_000)
    journal.close()
    sidecars = sorted((tmp_path / "journal").glob("*.index.gz"))
    before = [sidecar.read_bytes() for sidecar in sidecars]
    sidecars[0].unlink()
    sidecars[1].write_bytes(b"nonsense")
    again = open_journal(tmp_path)
    assert again.recovery.clean
    assert [sidecar.read_bytes() for sidecar in sidecars] == before
    assert read_all(again) == list(range(1, 181))
    again.close()


def test_killed_between_roll_and_seal(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 25, size=1_000)
    assert len(journal.segments()) == 2
    kill(journal)
    again = open_journal(tmp_path)
    assert again.recovery.clean
    assert [segment.state for segment in again.segments()] == ["sealed", "current"]
    assert again.segments()[0].path.stat().st_size == again.segments()[0].nbytes
    assert read_all(again) == list(range(1, 76))
    again.close()


def test_a_segment_in_the_middle_is_missing(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 80, size=1_000)
    journal.close()
    gone = journal.segments()[1]
    gone.path.unlink()
    again = open_journal(tmp_path)
    missing = range(gone.first_sequence, gone.last_sequence + 1)
    assert [(h.first_sequence, h.last_sequence) for h in again.missing_ranges] == [(missing[0], missing[-1])]
    assert f"{missing[0]} to {missing[-1]} are missing" in again.recovery.reason
    assert read_all(again) == [s for s in range(1, 241) if s not in missing]
    again.close()


def test_what_crashes_left_of_small_files_is_removed_and_nothing_of_others(tmp_path):
    path, _ = write_killed_journal(tmp_path)
    sidecar, left = f"{path.name.removesuffix('.journal')}.index.gz", "0123abcd.tmp"
    ours = [
        f"{INSTANCE}.clients.ack",
        sidecar,
        f"{path.name}.torn.4096",
        f"{path.name}.damaged.4096",
        f"{path.name}.header.0",
    ]
    others = [f"{INSTANCE}.2.clients.ack.{left}", f"other.clients.ack.{left}", f"{path.name}.torn.4096"]
    for name in (*(f"{name}.{left}" for name in ours), *others):
        (path.parent / name).touch()
    open_journal(tmp_path).close()
    names = {file.name for file in path.parent.iterdir()}
    assert [name for name in names if name.endswith(".tmp")] == [name for name in names if name in others[:2]]
    assert set(others) <= names


@pytest.mark.parametrize("same", [True, False], ids=["the same bytes", "others"])
def test_what_is_cut_off_is_kept_once_although_the_last_start_was_killed_right_behind_it(tmp_path, same):
    path, offsets = write_killed_journal(tmp_path)
    without_frontier(path)
    cut_short(path, offsets)
    aside = path.with_name(f"{path.name}.torn.{offsets[-2]}")
    torn = path.read_bytes()[offsets[-2] :]
    aside.write_bytes(torn if same else b"of another time")
    journal = open_journal(tmp_path)
    second = aside.with_name(f"{aside.name}.2")
    assert journal.recovery.set_aside == ([] if same else [second])
    assert (aside if same else second).read_bytes() == torn
    assert second.exists() is not same
    journal.close()


def test_publishers_that_were_read_out_of_several_segments_are_stored_at_once(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 100, size=1_000, publisher="anna")
    assert len(journal.segments()) > 2
    last = journal.durable_sequence
    kill(journal)
    path = publisher_sequences_path(tmp_path / "journal", INSTANCE)
    path.unlink()
    opened = open_journal(tmp_path)
    assert read_publisher_sequences(path) == (last, dict(opened.publishers)) and "anna" in opened.publishers
    opened.close()


def test_a_log_of_another_name_is_recognized_by_its_newest_segment(tmp_path):
    journal = open_journal(tmp_path)
    fill(journal, 100, size=1_000)
    journal.close()
    newest = segment_name(INSTANCE, max(one.first_sequence for one in journal.segments()))
    with pytest.raises(OperatorError, match=f"{newest} says {journal.identity}"):
        open_journal(tmp_path, known=KnownLog(uuid4(), 1))


def test_every_opening_reports_damage_even_in_segments_it_does_not_read(tmp_path):
    path, offsets = write_killed_journal(tmp_path)
    flip(path, offsets[7])
    journal = open_journal(tmp_path)
    (hole,) = journal.recovery.quarantined
    fill(journal, 60, size=1_000)  # its segment is full, and gets a sidecar
    journal.finish_sealed()
    journal.close()
    for _ in range(2):
        journal = open_journal(tmp_path)
        assert journal.recovery.quarantined == [hole] and journal.missing_ranges == [hole]
        assert journal.recovery.scanned_segments < len(journal.segments())
        journal.close()
