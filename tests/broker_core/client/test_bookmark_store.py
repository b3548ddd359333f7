"""Bookmark stores: progress out of order, across restarts, and after a crash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch, build_single_topic_batch, stamp_header
from broker_core.client import bookmark_store
from broker_core.client import bookmark_store as module
from broker_core.client.acknowledgements import CompletionTracker
from broker_core.client.bookmark_store import FileBookmarkStore, MemoryBookmarkStore
from broker_core.errors import OperatorError


def batch(first: int, count: int) -> Batch:
    buf = build_single_topic_batch("p", "a", [b"x"] * count)
    stamp_header(buf, origin=1, epoch=1, first_sequence=first, accepted_at=1)
    return Batch.parse(buf)


def test_the_most_recent_bookmark_moves_only_past_what_is_done_from_the_front() -> None:
    progress = CompletionTracker()
    progress.add(batch(10, 3))
    progress.add(batch(13, 2))
    assert not progress.mark_record_done(11)
    assert progress.mark_record_done(10)
    assert progress.most_recent == 11
    assert not progress.mark_record_done(13)
    assert progress.mark_record_done(12)
    assert progress.most_recent == 13
    assert progress.mark_record_done(14)
    assert progress.most_recent == 14


def test_what_is_done_after_an_undone_record_survives_the_process_until_that_is_done_too(
    tmp_path: Path,
) -> None:
    store = FileBookmarkStore(tmp_path / "marks")
    store.record("s", "i", 4)
    store.record_done("s", "i", 6, 7)
    store.record_done("s", "i", 9, 9)
    store.record_done("t", "i", 2, 2)
    store.close()
    again = FileBookmarkStore(tmp_path / "marks")
    assert list(again.processed_ranges("s", "i") or ()) == [(6, 7), (9, 9)]
    again.record("s", "i", 7)
    again.compact()
    again.close()
    third = FileBookmarkStore(tmp_path / "marks")
    assert (third.most_recent("s"), list(third.processed_ranges("s", "i") or ())) == ("i|7|", [(9, 9)])
    third.forget("s")
    assert third.processed_ranges("s", "i") is None and list(third.processed_ranges("t", "i") or ()) == [
        (2, 2)
    ]
    third.close()


def test_whole_batches_and_filtered_batches_count_too() -> None:
    progress = CompletionTracker()
    filtered = batch(1, 10).select(np.array([2, 5, 9]))
    progress.add(filtered)
    progress.add(batch(20, 2))
    assert not progress.mark_batch_done(batch(20, 2))
    assert progress.mark_record_done(3)
    assert progress.most_recent == 3
    assert not progress.mark_record_done(4)  # never delivered
    assert not progress.mark_record_done(99)
    assert progress.mark_record_done(6)
    assert progress.mark_record_done(10)
    assert progress.most_recent == 21


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6).flatmap(
        lambda counts: st.tuples(st.just(counts), st.permutations(range(1, sum(counts) + 1)))
    )
)
def test_in_any_order_it_is_the_last_record_before_the_first_that_is_not_done(
    case: tuple[list[int], list[int]],
) -> None:
    counts, order = case
    progress, first = CompletionTracker(), 1
    for count in counts:
        progress.add(batch(first, count))
        first += count
    done: set[int] = set()
    for sequence in order:
        before = progress.most_recent
        moved = progress.mark_record_done(sequence)
        done.add(sequence)
        expected = next(number for number in range(1, first + 1) if number not in done) - 1
        assert progress.most_recent == expected
        assert moved == (expected > before)


def test_a_memory_store_names_one_bookmark_for_each_instance() -> None:
    store = MemoryBookmarkStore()
    assert store.most_recent("s") is None
    store.record("s", "one", 5)
    store.record("s", "two", 7)
    store.record("s", "one", 6)
    assert store.most_recent("s") == "one|6|,two|7|"
    store.forget("s")
    assert store.most_recent("s") is None


def test_a_file_store_knows_in_the_next_process(tmp_path: Path) -> None:
    store = FileBookmarkStore(tmp_path / "marks")
    store.record("s", "one", 5)
    store.record("s", "one", 9)
    store.record('ü "x"', "one", 2)
    store.record("gone", "one", 2)
    store.forget("gone")
    with pytest.raises(OperatorError) as caught:
        FileBookmarkStore(tmp_path / "marks")
    assert caught.value.code == "store_locked"
    store.close()
    again = FileBookmarkStore(tmp_path / "marks")
    assert again.most_recent("s") == "one|9|"
    assert again.most_recent('ü "x"') == "one|2|"
    assert again.most_recent("gone") is None


def test_a_torn_last_line_is_cut_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    store = FileBookmarkStore(path)
    store.record("s", "one", 5)
    good = path.stat().st_size
    store.record("s", "one", 123_456)
    store.close()
    raw = path.read_bytes()
    for cut in range(good, len(raw)):
        path.write_bytes(raw[:cut])
        torn = FileBookmarkStore(path)
        assert (torn.most_recent("s"), torn.set_aside_bytes) == ("one|5|", cut - good)
        torn.record("s", "one", 6)
        torn.close()
        again = FileBookmarkStore(path)
        assert again.most_recent("s") == "one|6|"
        again.close()


def test_a_flipped_byte_costs_one_move_at_most_and_never_a_record(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    store = FileBookmarkStore(path)
    for sequence in (5, 6, 7):
        store.record("s", "one", sequence)
    store.close()
    raw = path.read_bytes()
    last_line = raw.rindex(b"\n", 0, -1) + 1
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        damaged = FileBookmarkStore(path)
        # The end of the line before joins it to the last one, and both are lost.
        expected = "one|7|" if at < last_line - 1 else "one|5|" if at == last_line - 1 else "one|6|"
        assert damaged.most_recent("s") == expected
        assert damaged.set_aside_bytes > 0
        damaged.close()
        again = FileBookmarkStore(path)
        assert again.set_aside_bytes == 0
        again.close()


def test_what_was_forgotten_stays_forgotten_whatever_byte_is_flipped(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    store = FileBookmarkStore(path)
    store.record("gone", "one", 5)
    store.record("s", "one", 5)
    store.forget("gone")
    store.close()
    raw = path.read_bytes()
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        try:
            damaged = FileBookmarkStore(path)
        except OperatorError:
            continue  # nothing in it was good any more
        assert damaged.most_recent("gone") is None
        damaged.close()


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_store_is_full_at_its_limit_and_has_room_when_something_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(bookmark_store, "MAX_POSITIONS", 3)
    store = MemoryBookmarkStore() if kind == "memory" else FileBookmarkStore(tmp_path / "marks")
    store.record("a", "one", 1)
    store.record("a", "two", 1)
    store.record("b", "one", 1)
    store.record("b", "one", 2)
    with pytest.raises(OperatorError) as caught:
        store.record("c", "one", 1)
    assert caught.value.code == "store_full"
    assert store.most_recent("c") is None
    store.forget("a")
    store.record("c", "one", 1)
    assert store.most_recent("c") == "one|1|"


def test_a_store_with_many_entries_is_not_rewritten_at_every_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPACT_AT", 1_000)
    store = FileBookmarkStore(tmp_path / "marks")
    written: list[int] = []
    original = module.FileBookmarkStore.compact

    def compact(store: FileBookmarkStore) -> None:
        original(store)
        written.append(store.path.stat().st_size)

    monkeypatch.setattr(module.FileBookmarkStore, "compact", compact)
    for number in range(500):
        store.record(f"subscription-{number}", "one", number)
    assert store.path.stat().st_size <= 2 * written[-1] + 100
    assert len(written) < 8, "each time it is twice as long"


def test_a_long_file_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPACT_AT", 1_000)
    path = tmp_path / "marks"
    store = FileBookmarkStore(path)
    for sequence in range(1, 500):
        store.record("s", "one", sequence)
    assert path.stat().st_size < 1_100
    store.close()
    assert FileBookmarkStore(path).most_recent("s") == "one|499|"


@pytest.mark.parametrize("content", [b"\0" * 10_000, b"my\nnotes\n"])
def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(OperatorError) as caught:
        FileBookmarkStore(path)
    assert caught.value.code == "bad_store"
    assert path.read_bytes() == content


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=20), st.data())
@settings(max_examples=200, deadline=None)
def test_a_resume_point_is_taken_when_everything_before_it_is_done_and_never_earlier(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Batches of `count` records with gaps of `gap` that don't match; after each, perhaps, the broker's
    resume point.
    """
    progress, following, open_, points = CompletionTracker(), 1, set[int](), [0]
    for count, gap in steps:
        progress.add(batch(following, count))
        open_ |= set(range(following, following + count))
        following += count + gap
        if data.draw(st.booleans()):
            points.append(following - 1)
            progress.advance_to(following - 1)
        while open_ and data.draw(st.booleans()):
            done = data.draw(st.sampled_from(sorted(open_)))
            open_.discard(done)
            progress.mark_record_done(done)
        assert progress.most_recent < min(open_, default=following), "something before it isn't done"
        reachable = [point for point in points if point < min(open_, default=following)]
        assert progress.most_recent >= reachable[-1]
