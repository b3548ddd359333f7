"""One subscription: who wants which records, on which stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from broker_core.filters import DecoderOf, Filter
from broker_core.subscriptions.topics import TopicPattern

T_co = TypeVar("T_co", covariant=True)


@dataclass(slots=True, eq=False, frozen=True)
class Subscription(Generic[T_co]):
    """What one client asked for. Two subscriptions are never equal: identity counts."""

    client: T_co
    """Whoever added it; the registry hands it back and never looks at it. None where nobody did."""
    id: str
    """The client's own word for the subscription."""
    stream: int
    """The number that stands in the frames delivered for it."""
    pattern: TopicPattern
    filter: Filter | None = None
    decoder_of: DecoderOf | None = None
    """How the filter and keys read a topic's bodies in a replay; as JSON without it."""
