"""Property test of replay: replay(b) then live equals everything after b, once, in order."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch
from broker_core.subscriptions import EMPTY, SubscriptionRegistry, select_rows

from .making import batch_of, subscription
from .test_registry import FILTERS, PATTERNS, matching_rows, records


def sequences_of(batch: Batch, rows: np.ndarray | None) -> list[int]:
    return batch.sequences()[slice(None) if rows is None else rows].tolist()  # type: ignore[no-any-return]


def journal_of(groups: list[list[tuple[str, bytes]]]) -> list[Batch]:
    """Batches one after the other, from sequence 1 on."""
    batches, first = [], 1
    for group in groups:
        batches.append(batch_of(group, first))
        first += len(group)
    return batches


@given(
    st.lists(st.lists(records, min_size=1, max_size=5), min_size=1, max_size=6),
    st.sampled_from(PATTERNS),
    st.sampled_from(FILTERS),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_replay_then_live_is_everything_after_the_bookmark_once_in_order(
    groups: list[list[tuple[str, bytes]]], pattern: str, text: str | None, data: st.DataObject
) -> None:
    batches, one = journal_of(groups), subscription(pattern, text)
    bookmark = data.draw(st.integers(0, batches[-1].last_sequence))
    hand_over = data.draw(st.integers(0, len(batches)))
    overlap = data.draw(st.integers(0, hand_over))
    following, got = bookmark + 1, list[int]()
    # Replay reads up to the hand-over, batches before the bookmark too; live repeats some of what was read.
    for batch in (*batches[:hand_over], *batches[overlap:]):
        got += sequences_of(batch, select_rows(one, batch, following))
        following = max(following, batch.last_sequence + 1)
    expected = [
        sequence
        for batch in batches
        for sequence in sequences_of(batch, np.array(matching_rows(batch, one), int))
    ]
    assert got == [sequence for sequence in expected if sequence > bookmark]


@given(
    st.lists(records, min_size=2, max_size=8), st.sampled_from(PATTERNS), st.sampled_from(FILTERS), st.data()
)
@settings(max_examples=100, deadline=None)
def test_selecting_agrees_with_the_registry_when_nothing_was_read_before(
    made: list[tuple[str, bytes]], pattern: str, text: str | None, data: st.DataObject
) -> None:
    batch, one, registry = batch_of(made, 100), subscription(pattern, text), SubscriptionRegistry(None)
    if data.draw(st.booleans()):
        batch = batch.select(np.arange(0, batch.count, 2))
    registry.add(one)
    live = {match.subscription: match.rows for match in registry.match(batch)}
    rows = select_rows(one, batch, 1)
    if rows is None or rows is EMPTY:
        assert live.get(one, EMPTY) is rows
    else:
        assert rows.tolist() == live[one].tolist()  # type: ignore[union-attr]


def test_a_batch_with_explicit_sequences_is_cut_at_the_sequence() -> None:
    whole = batch_of([("a", b"{}")] * 10, 100)
    odd = whole.select(np.array([1, 3, 5, 7]))
    assert sequences_of(odd, select_rows(subscription("a"), odd, 104)) == [105, 107]
    assert sequences_of(odd, select_rows(subscription("a"), odd, 105)) == [105, 107]
    assert select_rows(subscription("a"), odd, 101) is None
    assert select_rows(subscription("a"), odd, 108) is EMPTY


def test_a_batch_that_is_not_journaled_is_new_whatever_the_position() -> None:
    assert select_rows(subscription("a"), batch_of([("a", b"{}")] * 2), 50) is None
