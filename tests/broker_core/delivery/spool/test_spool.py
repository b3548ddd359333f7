"""One client's spool: order, counts, rolling, a full disk, damage, and a property test that it is a queue."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.spool import file_queue as module
from broker_core.delivery.spool.entry_format import RUN_BYTES, encode_reference
from broker_core.delivery.spool.file_queue import remove_leftover_spools
from broker_core.delivery.spool.spool import Spool
from broker_core.errors import JournalError
from broker_core.journal.files import FileSystem
from broker_core.journal.segment import BatchPosition

AT = 77
"""Start of a copy's age: later than the accept time of its batch, as for a client that subscribed in
between.
"""


@pytest.fixture
def spool(tmp_path):
    made = Spool(tmp_path / "i.anna.1.spool")
    yield made
    made.close()


def reference(spool, number, *, rows=None, count=5, length=1_000):
    spool.append_reference(
        7,
        BatchPosition(1, number * 8),
        length,
        count if rows is None else len(rows),
        number + 1,
        number + 1,
        rows,
    )


def copy(body=b"x" * 100, count=1):
    batch = Batch.parse(build_single_topic_batch("p", "t", [body] * count))
    batch.stamp(origin=1, epoch=1, first_sequence=0, accepted_at=70)
    return batch


def test_a_reference_is_forty_bytes():
    assert len(encode_reference(1, BatchPosition(1, 4_096), 100, 1, 100, 5, None)) == 40


def test_golden_bytes_of_a_reference():
    raw = encode_reference(2, BatchPosition(42, 4_096), 1_000, 2, 900, 9, np.array([1, 3]))
    assert raw.hex() == (
        "3d5af2c70101020002000000e803000084030000000200002a0000000000000009000000000000000100030000000000"
    )


def test_what_goes_in_comes_out_in_order(spool):
    reference(spool, 0)
    spool.append_copy(3, copy(), AT)
    reference(spool, 2, rows=np.array([0, 4, 65_535]))
    assert (spool.messages, spool.copied_messages, spool.entries) == (9, 1, 3)
    first, second, third = spool.pull(10**9)
    assert (first.stream, first.kind, first.position, first.length, first.count) == (
        7,
        "reference",
        BatchPosition(1, 0),
        1_000,
        5,
    )
    assert (second.stream, second.kind, second.accepted_at) == (3, "copy", AT)
    assert bytes(second.batch.buf) == bytes(copy().buf)
    assert third.rows.tolist() == [0, 4, 65_535]
    assert spool.empty
    assert (spool.messages, spool.copied_messages, spool.backlog_bytes, spool.disk_bytes) == (0, 0, 0, 0)


def join_entries(spool, start, lengths, *, stream=7, segment=1):
    """Return whole batches that follow each other directly from an offset on."""
    for length in lengths:
        place, batch = (
            BatchPosition(segment, start),
            SimpleNamespace(first_sequence=start, last_sequence=start + 4),
        )
        if not spool.extend(OutboxEntry(stream, batch, None, place, length, 5, length, start)):
            spool.append_reference(stream, place, length, 5, start, start)
        start += length


def test_neighbours_in_the_journal_are_one_reference(spool):
    join_entries(spool, 4_096, [1_000] * 50)
    assert (spool.entries, spool.messages, spool.backlog_bytes, spool.disk_bytes) == (1, 250, 50_000, 40)
    assert (spool.oldest_at, spool.first_sequence) == (4_096, 4_096)
    tally = spool.tallies[7]
    assert (tally.messages, tally.nbytes, tally.first, tally.last) == (250, 50_000, 4_096, 4_096 + 49_000 + 4)
    (entry,) = spool.pull(1)
    assert (entry.position, entry.length, entry.count, entry.accepted_at) == (
        BatchPosition(1, 4_096),
        50_000,
        250,
        4_096,
    )
    assert (spool.messages, spool.backlog_bytes, spool.tallies[7].messages) == (0, 0, 0)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"start": 5_104}, id="with a gap"),
        pytest.param({"stream": 8}, id="of another subscription"),
        pytest.param({"segment": 2}, id="in another segment"),
        pytest.param({"lengths": [RUN_BYTES - 992]}, id="that would be too long"),
    ],
)
def test_neighbours_that_are_a_reference_of_their_own(spool, other):
    join_entries(spool, 4_096, [1_000])
    join_entries(spool, **{"start": 5_096, "lengths": [1_000]} | other)
    assert (spool.entries, spool.disk_bytes) == (2, 80)
    assert [entry.count for entry in spool.pull(10**9)] == [5, 5]


def test_a_part_of_a_batch_joins_nothing(spool):
    join_entries(spool, 4_096, [1_000])
    spool.append_reference(7, BatchPosition(1, 5_096), 1_000, 2, 9, 9, np.array([0, 3]), 500)
    join_entries(spool, 6_096, [1_000])
    assert [(entry.count, entry.nbytes) for entry in spool.pull(10**9)] == [(5, 1_000), (2, 500), (5, 1_000)]


def test_what_was_seen_or_written_grows_no_more(spool):
    join_entries(spool, 4_096, [1_000])
    assert spool.oldest_at == 4_096  # read from memory
    join_entries(spool, 5_096, [1_000])
    assert [entry.length for entry in spool.pull(10**9)] == [1_000, 1_000]


def test_a_full_disk_keeps_the_reference_that_was_growing(tmp_path):
    files = FullDisk()
    spool = Spool(tmp_path / "i.anna.1.spool", files=files)
    join_entries(spool, 4_096, [1_000, 1_000])
    files.full = True
    with pytest.raises(JournalError, match="disk_full"):
        spool.append_copy(1, copy(b"x" * 20_000), AT)
    assert (spool.entries, spool.messages, spool.disk_bytes) == (1, 10, 40)
    assert [(entry.length, entry.count) for entry in spool.pull(10**9)] == [(2_000, 10)]
    spool.close()


def test_a_pull_takes_one_at_least_and_about_what_was_asked(spool):
    for number in range(10):
        reference(spool, number)
    assert len(spool.pull(1)) == 1
    assert len(spool.pull(2_500)) == 3
    assert spool.backlog_bytes == 6_000


def test_what_is_put_back_is_pulled_first_and_counts_as_before(spool):
    for number in range(4):
        reference(spool, number)
    spool.append_copy(7, copy(), AT)
    reference(spool, 5)
    pulled = spool.pull(10**9)
    assert spool.empty and spool.first_sequence == 0
    spool.requeue(pulled[1:], {7: 2})
    reference(spool, 6)
    assert (spool.entries, spool.messages, spool.copied_messages) == (6, 26, 1)
    assert (spool.oldest_at, spool.first_sequence, spool.tallies[7].messages) == (2, 2, 26)
    assert spool.requeued_bytes == copy().nbytes, "references hold nothing"
    assert [entry.accepted_at for entry in spool.pull(10**9)] == [2, 3, 4, 77, 6, 7]
    assert (spool.entries, spool.messages, spool.copied_messages, spool.backlog_bytes) == (0, 0, 0, 0)
    assert (spool.tallies[7].messages, spool.tallies[7].unjournaled, spool.requeued_bytes) == (0, 0, 0)
    spool.requeue([], {7: 9})
    assert spool.empty and spool.first_sequence == 0


def journaled_records(spool, first):
    """Return five records from sequence `first`, not adjacent to earlier ones in the log."""
    spool.append_reference(7, BatchPosition(1, first * 1_000), 1_000, 5, first, first)


def test_how_far_a_stream_has_come_is_known_by_what_was_handed_on(spool):
    for first in (10, 20, 30):
        journaled_records(spool, first)
    spool.pull(1)
    assert spool.first_sequences()[7] == 10, "as long as nobody says what was taken"
    spool.set_delivered_upto(7, 14)
    assert spool.first_sequences()[7] == 15
    spool.set_delivered_upto(8, 99)
    spool.pull(10**9)
    assert spool.first_sequences() == {}
    journaled_records(spool, 40)
    assert spool.first_sequences()[7] == 40, "what was there before says nothing of what comes"


def test_where_an_older_record_came_behind_a_newer_one_nothing_is_passed(spool):
    for first in (30, 10, 50):
        journaled_records(spool, first)
    spool.pull(1)
    spool.set_delivered_upto(7, 34)
    assert spool.first_sequences()[7] == 10


def test_the_oldest_entry_is_known(spool):
    assert spool.oldest_at == 0
    for number in range(3):
        reference(spool, number)
    assert spool.oldest_at == 1
    spool.pull(1)
    assert spool.oldest_at == 2


def test_first_sequence_never_passes_what_waits(spool):
    assert spool.first_sequence == 0
    for number in range(5_000):
        reference(spool, number)
    for taken in range(1, 5_000):
        spool.pull(1)
        assert taken - 1_024 <= spool.first_sequence <= taken + 1
    spool.append_copy(1, copy(), AT)
    spool.pull(10**9)
    assert spool.first_sequence == 0


def test_first_sequence_moves_on_in_a_backlog_that_stays_short(spool):
    reference(spool, 0)
    for number in range(1, 5_000):
        reference(spool, number)
        spool.pull(1)
    assert spool.first_sequence > 5_000 - 2 * 1_024


def test_memory_holds_little_of_a_long_backlog(spool):
    for number in range(5_000):
        reference(spool, number)
    assert spool.disk_bytes == 5_000 * 40
    assert spool._parts.unwritten_bytes < module.FLUSH_BYTES
    assert len(spool._blocks) == 5


def test_a_backlog_that_never_empties_gives_its_disk_back(spool, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PART_BYTES", 64 * 1024)
    for number in range(6_000):
        reference(spool, number)
    for number in range(6_000, 20_000):
        reference(spool, number)
        assert spool.pull(1)[0].accepted_at == number - 6_000 + 1
    assert spool.disk_bytes < 6_000 * 40 + 3 * 64 * 1024
    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert spool.disk_bytes == written + spool._parts.unwritten_bytes + 40, (
        "the newest may still become longer"
    )


def test_files_go_when_the_spool_is_empty_or_closed(spool, tmp_path):
    for number in range(1_000):
        reference(spool, number)
    assert len(list(tmp_path.iterdir())) == 1
    spool.pull(10**9)
    assert list(tmp_path.iterdir()) == []
    for number in range(1_000):
        reference(spool, number)
    spool.close()
    assert list(tmp_path.iterdir()) == []
    assert spool.empty


class FullDisk(FileSystem):
    full = False

    def pwritev(self, fd, buffers, offset):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().pwritev(fd, buffers, offset)


def test_disk_full_refuses_the_entry_and_keeps_those_before(tmp_path):
    files = FullDisk()
    spool = Spool(tmp_path / "i.anna.1.spool", files=files)
    reference(spool, 0)
    files.full = True
    with pytest.raises(JournalError) as caught:
        spool.append_copy(1, copy(b"x" * 20_000), AT)
    assert caught.value.code == "disk_full"
    assert (spool.entries, spool.backlog_bytes) == (1, 1_000)
    assert [entry.accepted_at for entry in spool.pull(10**9)] == [1]
    files.full = False
    spool.append_copy(1, copy(b"x" * 20_000), AT)
    assert spool.pull(1)[0].kind == "copy"
    spool.close()


def test_damage_is_named(spool, tmp_path):
    for number in range(1_000):
        reference(spool, number)
    (path,) = tmp_path.iterdir()
    with path.open("r+b") as file:
        file.seek(10 * 40 + 9)
        file.write(b"\xff")
    with pytest.raises(JournalError, match="spool_damaged"):
        spool.pull(10**9)


def test_clean_up_removes_what_an_earlier_run_left(tmp_path):
    left = Spool(tmp_path / "i.anna.1.spool")
    for number in range(1_000):
        reference(left, number)
    used = Spool(tmp_path / "i.bert.2.spool")
    for number in range(1_000):
        reference(used, number)
    left.close(remove=False)
    (tmp_path / "i.notes").touch()
    (tmp_path / "other.anna.1.spool.000001").touch()
    assert [path.name for path in remove_leftover_spools(tmp_path, "i")] == ["i.anna.1.spool.000001"]
    assert len(used.pull(10**9)) == 1_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i.notes", "other.anna.1.spool.000001"]
    used.close()
    assert remove_leftover_spools(tmp_path / "absent", "i") == []


steps = st.lists(
    st.one_of(
        st.tuples(st.just("whole"), st.integers(1, 400), st.booleans()),
        st.tuples(st.just("whole"), st.integers(1, 400), st.just(True)),
        st.tuples(st.just("rows"), st.integers(1, 400), st.booleans()),
        st.tuples(st.just("copy"), st.integers(0, 30_000), st.booleans()),
        st.tuples(st.just("pull"), st.integers(1, 50_000), st.booleans()),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_law_a_spool_is_a_queue(tmp_path_factory, steps):
    """Entries leave in the order in which they were added, and the counts are exact."""
    spool = Spool(tmp_path_factory.mktemp("law") / "i.a.1.spool")
    model: list[tuple[int, int, int]] = []  # offset (of a copy, its moment), count, nbytes
    out: list[tuple[int, int, int]] = []
    moments: dict[int, int] = {}
    offset = 8

    def taken(entries):
        for entry in entries:
            if entry.batch is not None:
                out.append((entry.accepted_at, entry.count, entry.nbytes))
                continue
            at, end, count = entry.position.offset, entry.position.offset + entry.nbytes, 0
            assert entry.accepted_at == moments[at], "a run's moment is its first batch's"
            while at < end:  # a run is the batches it was made of
                out.append(model[len(out)])
                assert out[-1][0] == at
                at, count = at + out[-1][2], count + out[-1][1]
            assert (at, count) == (end, entry.count)

    for number, (step, size, flag) in enumerate(steps, 1):
        if step in ("whole", "rows"):
            offset += 0 if flag else 8  # right behind the one before, or not
            rows = np.arange(size) if step == "rows" else None
            spool.append_reference(1, BatchPosition(1, offset), size * 8, size, number, number, rows)
            model.append((offset, size, size * 8))
            moments[offset] = number
            offset += size * 8
        elif step == "copy":
            batch = copy(b"y" * size, 2 if flag else 1)
            spool.append_copy(1, batch, number)
            model.append((number, batch.count, batch.nbytes))
        else:
            pulled = spool.pull(size)
            kept = len(pulled) // 2 if flag else len(pulled)
            taken(pulled[:kept])
            spool.requeue(pulled[kept:], {1: 1})
        waiting = model[len(out) :]
        assert spool.entries <= len(waiting) and bool(spool.entries) == bool(waiting)
        assert spool.messages == sum(entry[1] for entry in waiting)
        assert spool.backlog_bytes == sum(entry[2] for entry in waiting)
        assert bool(spool.oldest_at) == bool(waiting)
    taken(spool.pull(10**12))
    assert out == model
    spool.close()
