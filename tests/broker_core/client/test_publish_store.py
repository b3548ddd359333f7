"""Publish stores: records stored, dropped, restored after a crash, and refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.client import publish_store as module
from broker_core.client import store_file
from broker_core.client.publish_store import FilePublishStore, MemoryPublishStore, PublishStore, StoredBatch
from broker_core.errors import OperatorError


def batch(first: int, count: int = 2) -> bytearray:
    return build_single_topic_batch("p", "a", [b"x" * 10] * count, first)


def fill(store: PublishStore, numbers: int) -> None:
    """Batches of two: 1-2, 3-4, …"""
    for first in range(1, 2 * numbers, 2):
        store.add(first, first + 1, batch(first))


def spans(store: PublishStore, after: int = 0) -> list[tuple[int, int]]:
    return [(stored.first, stored.last) for stored in store.pending(after)]


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> PublishStore:
    return MemoryPublishStore() if request.param == "memory" else FilePublishStore(tmp_path / "s")


def test_acknowledged_messages_are_dropped_and_the_rest_stay_in_order(store: PublishStore) -> None:
    fill(store, 4)
    assert store.nbytes == sum(len(stored.batch) for stored in store.pending())
    store.discard_through(5)  # the middle of 5-6: a part is no whole batch
    assert spans(store) == [(5, 6), (7, 8)]
    assert (store.oldest_sequence(), store.last_sequence) == (5, 8)
    assert spans(store, after=6) == [(7, 8)]
    store.discard_through(8)
    assert (store.nbytes, store.oldest_sequence(), store.last_sequence) == (0, 0, 8)


def test_a_range_is_dropped_from_the_middle(store: PublishStore) -> None:
    fill(store, 4)
    store.discard(3, 4)
    assert spans(store) == [(1, 2), (5, 6), (7, 8)]
    store.discard(2, 7)  # 5-6 alone lies within
    assert spans(store) == [(1, 2), (7, 8)]


def test_what_is_dropped_while_it_is_read_is_left_out(store: PublishStore) -> None:
    fill(store, 3)
    reading = store.pending()
    assert next(reading).first == 1
    store.discard_through(4)
    assert [stored.first for stored in reading] == [5]


def test_a_file_store_knows_everything_in_the_next_process(tmp_path: Path) -> None:
    first = FilePublishStore(tmp_path / "s")
    fill(first, 5)
    first.discard_through(4)
    first.discard(7, 8)
    first.close()
    second = FilePublishStore(tmp_path / "s")
    assert spans(second) == [(5, 6), (9, 10)]
    assert second.last_sequence == 10
    assert [Batch.parse(stored.batch).first_publisher_sequence for stored in second.pending()] == [5, 9]
    second.close()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_torn_tail_is_cut_at_every_length_and_what_stood_before_it_is_there(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "s"
        whole = FilePublishStore(path)
        fill(whole, 3)
        whole.close()
        raw = path.read_bytes()
        entry = (len(raw) - 16) // 3
        cut = data.draw(st.integers(16, len(raw)))
        path.write_bytes(raw[:cut])
        store = FilePublishStore(path)
        kept = (cut - 16) // entry
        assert [first for first, _ in spans(store)] == [1, 3, 5][:kept]
        assert store.set_aside_bytes == (cut - 16) % entry
        store.add(store.last_sequence + 1, store.last_sequence + 2, batch(store.last_sequence + 1))
        store.close()
        again = FilePublishStore(path)
        assert len(spans(again)) == kept + 1
        again.close()


def test_the_bytes_of_a_torn_tail_are_kept_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = FilePublishStore(path)
    fill(store, 1)
    store.close()
    with path.open("ab") as file:
        file.write(b"half an entry")
    assert FilePublishStore(path).set_aside_bytes == 13
    assert (tmp_path / "s.torn").read_bytes() == b"half an entry"


def test_a_flipped_byte_costs_the_batch_it_is_in_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = FilePublishStore(path)
    fill(store, 3)
    store.close()
    raw = path.read_bytes()
    entry = (len(raw) - 16) // 3
    for at in range(16, len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        damaged = FilePublishStore(path)
        hit = (at - 16) // entry
        assert spans(damaged) == [
            span for number, span in enumerate([(1, 2), (3, 4), (5, 6)]) if number != hit
        ]
        assert damaged.set_aside_bytes == entry
        assert path.with_name("s.torn").read_bytes() == path_entry(raw, hit, entry, at)
        damaged.close()
        again = FilePublishStore(path)
        assert again.set_aside_bytes == 0, "what was set aside once isn't found again"
        again.close()


def path_entry(raw: bytes, number: int, size: int, flipped: int) -> bytes:
    """The bytes of an entry, one of them flipped."""
    whole = bytearray(raw)
    whole[flipped] ^= 1
    return bytes(whole[16 + number * size : 16 + (number + 1) * size])


def test_a_full_disk_keeps_no_acknowledgement_and_frees_room_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FilePublishStore(tmp_path / "s")
    fill(store, 3)

    def full(file: int, buffers: object, offset: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store_file.os, "pwritev", full)
        store.discard_through(4)
    assert spans(store) == [(5, 6)]
    store.close()
    # A repeat at worst: the broker knows these numbers and drops them.
    assert spans(FilePublishStore(tmp_path / "s")) == [(1, 2), (3, 4), (5, 6)]


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("These are my notes, not a store.")
    with pytest.raises(OperatorError) as caught:
        FilePublishStore(path)
    assert caught.value.code == "bad_store"
    assert path.read_text().startswith("These are")


def test_a_store_has_one_user_at_a_time(tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "s")
    with pytest.raises(OperatorError) as caught:
        FilePublishStore(tmp_path / "s")
    assert caught.value.code == "store_locked"
    store.close()
    FilePublishStore(tmp_path / "s").close()


def test_the_file_is_rewritten_when_most_of_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPACT_AT", 10_000)
    path = tmp_path / "s"
    store = FilePublishStore(path)
    for first in range(1, 2_001, 2):
        store.add(first, first + 1, batch(first))
        store.discard_through(first - 3)
    assert path.stat().st_size < 40_000
    kept = spans(store)
    assert kept
    with pytest.raises(OperatorError):
        FilePublishStore(path)  # the new file is locked as the old one was
    store.close()
    again = FilePublishStore(path)
    assert (spans(again), again.last_sequence) == (kept, 2_000)


def test_numbers_are_never_used_twice_even_when_nothing_is_kept(tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "s")
    fill(store, 3)
    store.discard_through(6)
    store.compact()
    store.close()
    assert FilePublishStore(tmp_path / "s").last_sequence == 6


def test_a_failed_write_leaves_the_store_whole_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FilePublishStore(tmp_path / "s")
    fill(store, 1)

    def full(file: int, buffers: object, offset: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store_file.os, "pwritev", full)
        with pytest.raises(OperatorError) as caught:
            store.add(3, 4, batch(3))
    assert caught.value.code == "store_failed"
    store.add(3, 4, batch(3))
    store.close()
    assert spans(FilePublishStore(tmp_path / "s")) == [(1, 2), (3, 4)]


def renumbered(store: PublishStore, shift: int) -> Iterator[StoredBatch]:
    for first, last, kept in store.pending():
        yield StoredBatch(first + shift, last + shift, bytes(kept))


def test_everything_kept_is_replaced_while_it_is_read(store: PublishStore) -> None:
    fill(store, 4)
    store.discard_through(2)
    size = store.nbytes
    store.replace(renumbered(store, 10))
    assert spans(store) == [(13, 14), (15, 16), (17, 18)]
    assert (store.oldest_sequence(), store.last_sequence, store.nbytes) == (13, 18, size)
    store.add(19, 20, batch(19))
    store.discard_through(16)
    assert spans(store) == [(17, 18), (19, 20)]


def test_a_replacement_is_restored_and_a_failing_disk_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FilePublishStore(tmp_path / "s")
    fill(store, 3)
    with monkeypatch.context() as patch:
        patch.setattr(store._file, "rewrite", lambda parts: bool([*parts][:0]))
        with pytest.raises(OperatorError) as caught:
            store.replace(renumbered(store, 10))
    assert caught.value.code == "store_failed"
    assert spans(store) == [(1, 2), (3, 4), (5, 6)]
    store.replace(renumbered(store, 10))
    store.add(17, 18, batch(17))
    expected = [(stored.first, stored.last, bytes(stored.batch)) for stored in store.pending()]
    store.close()
    again = FilePublishStore(tmp_path / "s")
    assert [(one.first, one.last, bytes(one.batch)) for one in again.pending()] == expected
    assert (again.last_sequence, again.set_aside_bytes) == (18, 0)
