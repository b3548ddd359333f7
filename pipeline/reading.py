"""The journal as Arrow: a plan of spans made once, and each span read wherever it is wanted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from broker_core.errors import JournalError
from broker_core.journal.index import SegmentIndex
from broker_core.subscriptions.topics import TopicPattern
from pipeline.config import LogPlace
from pipeline.schemas import record_schema
from pipeline.segments import Span, durable_sequence, first_sequences, open_index, read_batches
from pipeline.transforms.records import Gatherer, Wanted

GATHER_RECORDS = 32_768
GATHER_BYTES = 8 * 1024 * 1024
"""One Arrow batch holds about so much: enough to decode at once, little enough for the processor's cache."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to read. Bounds are included; None leaves that side open. Times are nanoseconds UTC."""

    columns: tuple[str, ...] | None = None
    topics: tuple[str, ...] = ()
    """Topic patterns, as subscriptions use them; none means every topic."""
    start: int | None = None
    end: int | None = None
    start_at: int | None = None
    end_at: int | None = None
    durable: int | None = None
    """The durable frontier, when the caller knows it better than the broker's file."""
    skip_gaps: bool = False

    def to_json(self) -> str:
        """As one option of Spark's reader."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str) -> Request:
        """The inverse of `to_json`."""
        found = json.loads(text)
        columns = found["columns"]
        return cls(
            **{**found, "columns": tuple(columns) if columns else None, "topics": tuple(found["topics"])}
        )


def topic_test(patterns: Sequence[str]) -> Callable[[str], bool] | None:
    """Whether a topic matches one of the patterns; None when every topic does. ClientError bad_pattern."""
    if not patterns:
        return None
    parsed = [TopicPattern.parse(text) for text in patterns]
    return lru_cache(maxsize=65_536)(lambda topic: any(pattern.matches(topic) for pattern in parsed))


def plan(place: LogPlace, request: Request) -> list[Span]:
    """One span per segment that can hold something of the request, up to the durable frontier."""
    segments = first_sequences(place)
    durable = durable_sequence(place) if request.durable is None else request.durable
    last = durable if request.end is None else min(request.end, durable)
    first = segments[0] if request.start is None and segments else request.start or 1
    if segments and first < segments[0] and last >= first and not request.skip_gaps:
        raise JournalError(
            "bookmark_gone",
            f"Records {first} to {min(last, segments[0] - 1)} are no longer in the journal or the archive.",
            f"Start at {segments[0]}, or bring the archived segments back.",
            first=segments[0],
        )
    wanted = topic_test(request.topics)
    spans: list[Span] = []
    for number, segment in enumerate(segments):
        end = segments[number + 1] - 1 if number + 1 < len(segments) else durable
        span = Span(segment, max(segment, first), min(end, last))
        if span.first <= span.last and _may_hold(open_index(place, segment), request, wanted):
            spans.append(span)
    return spans


def _may_hold(index: SegmentIndex | None, request: Request, wanted: Callable[[str], bool] | None) -> bool:
    """Whether a segment is worth opening, by its sidecar."""
    if index is None:
        return True
    if request.start_at is not None and index.last_at < request.start_at:
        return False
    if request.end_at is not None and index.first_at > request.end_at:
        return False
    return wanted is None or index.topics is None or any(wanted(topic) for topic in index.topics)


def read_span(place: LogPlace, span: Span, request: Request) -> Iterator[pa.RecordBatch]:
    """The request's records of one span, in order, as Arrow. Raises JournalError when the span isn't whole."""
    wanted = Wanted(
        topic=topic_test(request.topics),
        first=span.first,
        last=span.last,
        first_at_us=None if request.start_at is None else -(-request.start_at // 1_000),
        last_at_us=None if request.end_at is None else request.end_at // 1_000,
    )
    gatherer = Gatherer(record_schema(request.columns), place.instance, wanted)
    for batch in read_batches(place, span, skip_gaps=request.skip_gaps):
        gatherer.add(batch)
        if gatherer.records >= GATHER_RECORDS or gatherer.nbytes >= GATHER_BYTES:
            made = gatherer.take()
            if made is not None:
                yield made
    made = gatherer.take()
    if made is not None:
        yield made
