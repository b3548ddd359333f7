"""One subscription: who wants which records, on which stream."""

from __future__ import annotations

from dataclasses import dataclass

from broker_core.filters import DecoderOf, Filter
from broker_core.subscriptions.topics import TopicPattern


@dataclass(slots=True, eq=False)
class Subscription:
    """What one client asked for. Two subscriptions are never equal: identity counts."""

    client: object
    """Whoever added it; the registry hands it back and never looks at it."""
    id: str
    """The client's own word for the subscription."""
    stream: int
    """The number that stands in the frames delivered for it."""
    pattern: TopicPattern
    filter: Filter | None = None
    decoder_of: DecoderOf | None = None
    """How the filter reads a topic's bodies in a replay; as JSON without it."""
