"""Reads a journal as Arrow: plans spans once, and reads each span in any process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from broker_core.batch import Batch, Rows
from broker_core.bookmark import MAX_SEQUENCE
from broker_core.config.instance import MESSAGE_TYPES
from broker_core.errors import OperatorError
from broker_core.filters import BatchEvaluator, Filter, compile_filter
from broker_core.filters.message_types import Decoder, decoder_for
from broker_core.journal.segment_index import IndexedRange, SegmentIndex
from broker_core.journal.segment_reader import SegmentSource
from broker_core.subscriptions.topics import TopicPattern
from sluice_spark.arrow_builder import ArrowBatchBuilder, RecordFilter
from sluice_spark.columns import record_schema
from sluice_spark.location import LogLocation
from sluice_spark.log import REMOVED, LogGap, LogSnapshot, examine_log, gap_error
from sluice_spark.segments import (
    SegmentSpan,
    SidecarHint,
    open_index,
    open_segment,
    read_batches,
    sidecar_summary,
)
from sluice_spark.tasks import split_span, with_size

GATHER_RECORDS = 32_768
GATHER_BYTES = 8 * 1024 * 1024
"""Size of one Arrow batch, with GATHER_RECORDS.

It is enough to decode efficiently, and fits the processor's cache.
"""
SMALL_RECORDS = 8_192
"""Records up to which filtered Arrow batches are joined. Each batch costs a transfer to Spark."""
MAX_NAMES = 16
"""Maximum topics that are looked up one by one."""
MAX_HINT_RANGES = 512
"""Maximum ranges sent with a span. Above it the worker finds them again."""
SPLIT_BYTES = 128 * 1024 * 1024
CLOCK_SLACK_NS = 3_600 * 10**9
"""Maximum step back of a broker's clock for which `end_at` is still exact inside a segment."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Selection of records. Bounds are inclusive; None leaves a side open. Times are ns UTC."""

    columns: tuple[str, ...] | None = None
    topics: tuple[str, ...] = ()
    """Topic patterns as in subscriptions; none selects all topics."""
    start: int | None = None
    end: int | None = None
    start_at: int | None = None
    end_at: int | None = None
    durable: int | None = None
    """The durable frontier, if the caller knows it better than the broker's file."""
    skip_gaps: bool = False
    filter: str = ""
    """Filter in the broker's language over bodies of `message_type`. A body of another type never passes."""
    message_type: str = "json"
    split_bytes: int = SPLIT_BYTES
    """Approximate raw bytes of one task."""

    def to_json(self) -> str:
        """Return the request as JSON, for one option of Spark's reader."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str) -> ReadRequest:
        """Parse the result of `to_json`."""
        found = json.loads(text)
        columns = found["columns"]
        return cls(
            **{**found, "columns": tuple(columns) if columns else None, "topics": tuple(found["topics"])}
        )

    def check(self) -> None:
        """Check the request.

        Raises OperatorError bad_columns, bad_range; ClientError bad_pattern, bad_filter.
        """
        record_schema(self.columns)
        TopicMatcher(self.topics)
        _compile_row_selector(self)
        for first, last in ((self.start, self.end), (self.start_at, self.end_at)):
            if first is not None and last is not None and first > last:
                raise OperatorError(
                    "bad_range", f"The range ends before it begins: {first} to {last}.", "Swap start and end."
                )
        if any(bound is not None and bound < 1 for bound in (self.start, self.end)):
            raise OperatorError("bad_range", "A log begins with record 1.", "Give 1 or more.")


class TopicMatcher:
    """Test for topics that match one of some patterns. The constructor raises ClientError bad_pattern."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [TopicPattern.parse(text) for text in patterns]
        self.matches_all = not self._patterns
        self.matches: Callable[[str], bool] = lru_cache(maxsize=65_536)(self._match)

    def _match(self, topic: str) -> bool:
        return self.matches_all or any(pattern.matches(topic) for pattern in self._patterns)

    @property
    def literal_parts(self) -> tuple[bytes, ...]:
        """Bytes of which every matching topic contains one; empty if unknown."""
        if any(pattern.text.startswith("~") for pattern in self._patterns):
            return ()
        found = [pattern.text.partition("*")[0].partition(">")[0].encode() for pattern in self._patterns]
        return tuple(found) if all(found) else ()

    @property
    def matching_topics(self) -> frozenset[bytes]:
        """The matching topics, if every pattern is a plain name and they are at most MAX_NAMES.

        Else empty.
        """
        found = {pattern.exact for pattern in self._patterns}
        if len(found) > MAX_NAMES:
            return frozenset()
        names = frozenset(name.encode() for name in found if name is not None)
        return names if len(names) == len(found) else frozenset()


@lru_cache(maxsize=16)
def topic_matcher(patterns: tuple[str, ...]) -> TopicMatcher:
    """Return a cached matcher, shared by all spans, which also caches its results."""
    return TopicMatcher(patterns)


def plan_read(location: LogLocation, request: ReadRequest) -> list[SegmentSpan]:
    """Plan the spans of a request.

    One for each segment, or part of a large one, that may have matching records.

    Raises OperatorError no_journal, bad_range; JournalError bookmark_gone if the log lacks requested
    records.
    """
    return plan_log(examine_log(location, request.durable), request)


def plan_log(log: LogSnapshot, request: ReadRequest) -> list[SegmentSpan]:
    """Plan the spans of a request on a snapshot. See `plan_read`."""
    first, last = check_log(log, request)
    spans, topics = list[SegmentSpan](), topic_matcher(request.topics)
    for number, segment in enumerate(log.segments):
        if number + 1 < len(log.segments) and log.segments[number + 1] <= first:
            continue
        span = SegmentSpan(segment, max(segment, first), min(log.segment_end(number), last))
        if span.first <= span.last and _may_match(sidecar_summary(log.location, segment), request):
            spans += _split_selected(log.location, span, request, topics)
    return spans


def check_log(log: LogSnapshot, request: ReadRequest) -> tuple[int, int]:
    """Return the first and last sequence to read, after checking the request against the log.

    Raises OperatorError bad_range; JournalError bookmark_gone.
    """
    bounds = sequence_bounds(log, request)
    gaps = gaps_in_request(log, request)
    if gaps and not request.skip_gaps:
        raise gap_error(gaps[0], log)
    return bounds


def sequence_bounds(log: LogSnapshot, request: ReadRequest) -> tuple[int, int]:
    """Return the first and last sequence to read; last < first in an empty log.

    Raises OperatorError bad_range.
    """
    request.check()
    for bound in (request.start, request.end):
        if bound is not None and bound > log.frontier:
            raise OperatorError(
                "bad_range",
                f"Record {bound} doesn't exist: the log of {log.location.instance} ends with {log.frontier}.",
                "Give an existing record.",
                frontier=log.frontier,
            )
    return (
        log.first if request.start is None else request.start,
        log.frontier if request.end is None else request.end,
    )


def gaps_in_request(log: LogSnapshot, request: ReadRequest) -> list[LogGap]:
    """Return the gaps of the log within a request.

    A request without `start` begins with the oldest record, so removed records aren't requested. Missing
    ones always are.
    """
    _, last = sequence_bounds(log, request)
    gaps = log.gaps(request.start or 1, last)
    return [gap for gap in gaps if request.start is not None or gap.why != REMOVED]


def _may_match(index: SegmentIndex | None, request: ReadRequest) -> bool:
    """Whether a segment may have matching records, by its sidecar."""
    if index is None:
        return True
    if request.start_at is not None and index.last_at < request.start_at:
        return False
    return request.end_at is None or index.first_at - CLOCK_SLACK_NS <= request.end_at


def _split_selected(
    location: LogLocation, span: SegmentSpan, request: ReadRequest, topics: TopicMatcher
) -> Iterator[SegmentSpan]:
    """Yield the parts of a span to read, each of about a task's bytes."""
    hint = None
    if not topics.matches_all:
        hint = _find_hint(location, span, open_segment(location, span.segment), request, topics)
    nbytes = (
        0 if hint is None else sum(indexed_range.end - indexed_range.offset for indexed_range in hint.ranges)
    )
    if hint is None or nbytes > request.split_bytes:
        yield from split_span(location, with_size(location, span), request.split_bytes)
    elif nbytes:
        yield span._replace(nbytes=nbytes, hint=hint if len(hint.ranges) <= MAX_HINT_RANGES else None)


def read_spans(
    location: LogLocation, spans: Sequence[SegmentSpan], request: ReadRequest
) -> Iterator[pa.RecordBatch]:
    """Yield the matching records of several spans, in order, in Arrow batches of useful size."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for span in spans:
        for batch in read_span(location, span, request):
            if not pending and batch.num_rows >= SMALL_RECORDS:
                yield batch
                continue
            pending.append(batch)
            rows += batch.num_rows
            if rows >= SMALL_RECORDS:
                yield pa.concat_batches(pending)
                pending, rows = [], 0
    if pending:
        yield pa.concat_batches(pending)


def read_span(
    location: LogLocation,
    span: SegmentSpan,
    request: ReadRequest,
    on_batch: Callable[[Batch], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the matching records of a span, in order, as Arrow batches.

    `on_batch` is called with each batch read, even without matching records. Raises JournalError if the span
    isn't complete.
    """
    topics = topic_matcher(request.topics)
    source = open_segment(location, span.segment)
    hint = span.hint
    if hint is None or (hint.topics, hint.times) != (
        request.topics,
        (request.start_at, request.end_at),
    ):
        hint = _find_hint(location, span, source, request, topics)
    record_filter = RecordFilter(
        topic=None if topics.matches_all else topics.matches,
        needles=topics.literal_parts,
        names=topics.matching_topics if hint is None else hint.names,
        first=span.first,
        last=span.last,
        first_at=request.start_at,
        last_at=request.end_at,
    )
    builder = ArrowBatchBuilder(record_schema(request.columns), location.instance, record_filter)
    select_rows = _compile_row_selector(request)
    for at in (None,) if hint is None else hint.ranges:
        clipped = span if at is None else _clip_span(span, at)
        for batch in read_batches(location, clipped, source, indexed_range=at, skip_gaps=request.skip_gaps):
            if on_batch is not None:
                on_batch(batch)
            builder.add(batch, None if select_rows is None else select_rows(batch, topics))
            if builder.records >= GATHER_RECORDS or builder.nbytes >= GATHER_BYTES:
                arrow_batch = builder.build_batch()
                if arrow_batch is not None:
                    yield arrow_batch
    arrow_batch = builder.build_batch()
    if arrow_batch is not None:
        yield arrow_batch


def _clip_span(span: SegmentSpan, indexed_range: IndexedRange) -> SegmentSpan:
    return span._replace(first=max(indexed_range.first, span.first), last=min(indexed_range.last, span.last))


def _find_hint(
    location: LogLocation,
    span: SegmentSpan,
    source: SegmentSource,
    request: ReadRequest,
    topics: TopicMatcher,
) -> SidecarHint | None:
    """Return the ranges of a span that may match, by its segment's sidecar; None: unknown, or all of it."""
    if topics.matches_all and request.start_at is None and request.end_at is None:
        return None
    index = open_index(location, span.segment, source)
    topic_index = None if index is None else index.topic_index
    if index is None or topic_index is None or span.last > index.last_sequence:
        return None
    mask, names = None, topics.matching_topics
    if names:
        mask = topic_index.topic_mask(name.decode() for name in names)
    elif not topics.matches_all:
        topics_of_segment = list(filter(topics.matches, topic_index.known_topics()))
        mask = topic_index.topic_mask(topics_of_segment)
        if topic_index.topics is not None and len(topics_of_segment) <= MAX_NAMES:
            names = frozenset(topic.encode() for topic in topics_of_segment)
    last_at = MAX_SEQUENCE if request.end_at is None else request.end_at + CLOCK_SLACK_NS
    ranges = index.ranges_to_read(mask, span.first, span.last, request.start_at or 0, last_at)
    return SidecarHint(request.topics, (request.start_at, request.end_at), tuple(ranges), names)


RowSelector = Callable[[Batch, TopicMatcher], Rows]


def _compile_row_selector(request: ReadRequest) -> RowSelector | None:
    """Return a function that selects the rows of a batch by the request's filter; None without a filter.

    Raises ClientError bad_filter, OperatorError bad_setting.
    """
    if request.message_type not in MESSAGE_TYPES:
        raise OperatorError(
            "bad_setting",
            f"The message type {request.message_type[:40]!r} is unknown.",
            f"Choose from {', '.join(MESSAGE_TYPES)}.",
        )
    if not request.filter:
        return None
    compiled: Filter = compile_filter(request.filter)
    decoder: Decoder | None = decoder_for(request.message_type)

    def select_rows(batch: Batch, topics: TopicMatcher) -> Rows:
        candidates: Rows | None = None
        if not topics.matches_all:
            chosen = np.array([topics.matches(topic) for topic in batch.topics])
            candidates = np.flatnonzero(chosen[batch.topic_indexes.astype(np.int64) - 1])
            if not len(candidates):
                return candidates
        return BatchEvaluator(batch, None if decoder is None else lambda _: decoder).rows(
            compiled, candidates
        )

    return select_rows
