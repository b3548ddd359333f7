"""Chunks of a replay: small chunks have parts of batches, large ones whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_core.delivery.scheduling import FIRST_CHUNK_BYTES, MAX_CHUNK_BYTES_BESIDE_LIVE
from broker_core.journal.journal import Journal, JournalOptions
from broker_core.replay.read_ahead import ReplayChunk, ReplayTarget, read_chunk
from broker_core.replay.span import ReplaySpan
from broker_core.subscriptions.subscription import TopicSubscription
from broker_core.subscriptions.topics import TopicPattern
from tests.broker_core.journal.support import fill

COUNT = 512


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """Three batches as the client library makes them for a busy publisher: 512 records, 64 KB."""
    made = Journal.open(tmp_path, "pieces", None, JournalOptions(segment_size=1024 * 1024, preallocated=1))
    fill(made, 3, COUNT)
    yield made
    made.close()


def reader(next_sequence: int) -> ReplayTarget:
    return ReplayTarget(TopicSubscription(None, "s", 1, TopicPattern.parse("t.a")), next_sequence)


def chunks(journal: Journal, start: int, max_bytes: int) -> list[ReplayChunk]:
    """All chunks of a replay from `start` on, each as large."""
    found = []
    while start < journal.next_sequence:
        found.append(
            read_chunk(journal, [reader(start)], ReplaySpan(1), journal.next_sequence - 1, max_bytes, True)
        )
        start = found[-1].following
    return found


def sequences(found: list[ReplayChunk]) -> list[int]:
    return [each for chunk in found for piece in chunk.slices for each in piece.batch.sequences().tolist()]


def test_batches_that_are_larger_than_a_small_chunk_are_cut(journal: Journal) -> None:
    found = chunks(journal, 1, FIRST_CHUNK_BYTES)
    assert sequences(found) == list(range(1, 3 * COUNT + 1))
    assert len(found) == 12
    assert all(piece.batch.nbytes <= FIRST_CHUNK_BYTES + 200 for chunk in found for piece in chunk.slices)
    bodies = [body for chunk in found for piece in chunk.slices for body in piece.batch.bodies()]
    assert bodies == [body for batch in journal.read(1, 1 << 20, 3 * COUNT) for body in batch.bodies()]


def test_each_part_says_where_its_records_stand(journal: Journal) -> None:
    found = chunks(journal, COUNT + 101, FIRST_CHUNK_BYTES)
    assert sequences(found) == list(range(COUNT + 101, 3 * COUNT + 1))
    for chunk in found:
        (piece,) = chunk.slices
        assert piece.source is not None and piece.rows is not None
        assert journal.read_at(piece.source, piece.length).select(piece.rows).buf == piece.batch.buf


def test_subscriptions_that_share_a_replay_get_the_same_part_each_from_where_it_is(journal: Journal) -> None:
    first, second = reader(1), reader(21)
    chunk = read_chunk(journal, [first, second], ReplaySpan(1), 3 * COUNT, FIRST_CHUNK_BYTES, True)
    got: dict[int, list[int]] = {1: [], 21: []}
    for piece in chunk.slices:
        mine = got[1] if piece.subscription is first.subscription else got[21]
        mine += piece.batch.sequences().tolist()
    assert got == {1: list(range(1, chunk.following)), 21: list(range(21, chunk.following))}
    assert chunk.following < COUNT


def test_batches_that_fit_their_chunk_are_passed_as_they_stand(journal: Journal) -> None:
    found = chunks(journal, 1, MAX_CHUNK_BYTES_BESIDE_LIVE)
    assert sequences(found) == list(range(1, 3 * COUNT + 1))
    assert all(piece.rows is None for chunk in found for piece in chunk.slices)


def test_a_record_that_is_larger_than_the_chunk_is_not_cut(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, "large", None, JournalOptions(segment_size=1024 * 1024, preallocated=1))
    fill(journal, 1, 3, size=3 * FIRST_CHUNK_BYTES)
    read = chunks(journal, 1, FIRST_CHUNK_BYTES)
    assert [[piece.batch.count for piece in chunk.slices] for chunk in read] == [
        [1],
        [1],
        [1],
    ]
    journal.close()


def test_a_span_that_ends_within_a_part_ends_there(journal: Journal) -> None:
    chunk = read_chunk(journal, [reader(1)], ReplaySpan(1, last=5), 3 * COUNT, FIRST_CHUNK_BYTES, True)
    assert sequences([chunk]) == [1, 2, 3, 4, 5]
    assert ReplaySpan(1, last=5).is_past_end(chunk.following, 3 * COUNT, 0)


def test_a_client_that_reads_gets_large_batches_whole(journal: Journal) -> None:
    chunk = read_chunk(journal, [reader(1)], ReplaySpan(1), 3 * COUNT, FIRST_CHUNK_BYTES)
    assert sequences([chunk]) == list(range(1, COUNT + 1))
    assert [piece.rows for piece in chunk.slices] == [None]
