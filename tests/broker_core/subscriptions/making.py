"""Batches and subscriptions for the tests of subscriptions."""

from __future__ import annotations

from collections.abc import Sequence

from broker_core.batch import Batch, build_batch
from broker_core.filters import compile_filter
from broker_core.subscriptions import TopicPattern, TopicSubscription


def batch_of(records: Sequence[tuple[str, bytes]], first_sequence: int = 0) -> Batch:
    """A batch of (topic, body) records, journaled from a sequence on, or not journaled."""
    whole = build_batch("publisher", [topic for topic, _ in records], [body for _, body in records])
    batch = Batch.parse(whole)
    if first_sequence:
        batch.stamp(origin=1, epoch=1, first_sequence=first_sequence, accepted_at=1)
    return batch


def subscription(pattern: str, text: str | None = None, stream: int = 1) -> TopicSubscription[None]:
    return TopicSubscription(
        None, f"s{stream}", stream, TopicPattern.parse(pattern), compile_filter(text) if text else None
    )
