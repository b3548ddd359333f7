"""Division of spans into tasks of about equal size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from broker_core.bookmark import MAX_SEQUENCE
from sluice_spark.location import LogLocation
from sluice_spark.segments import SegmentSpan, segment_size, sidecar_positions, sidecar_summary

MIN_TASKS: Final = 4
MIN_TASK_BYTES: Final = 8 * 1024 * 1024
"""Minimum bytes of each of FEW_TASKS tasks that share a small read.

One task would leave other cores idle. Each further task costs about 5 ms of the driver's time.
"""


class SpanGroup(NamedTuple):
    """Spans that one task reads, in order."""

    spans: tuple[SegmentSpan, ...]


def plan_tasks(
    location: LogLocation, spans: Sequence[SegmentSpan], max_bytes: int, min_bytes: int = MIN_TASK_BYTES
) -> list[SpanGroup]:
    """Divide spans into tasks of about `max_bytes` raw bytes.

    Tasks are smaller if one or two would read everything.
    """
    total = sum(span.nbytes for span in spans)
    tasks = min(MIN_TASKS, total // min_bytes)
    size = min(max_bytes, -(-total // tasks)) if tasks else max_bytes
    return merge_spans([part for span in spans for part in split_span(location, span, size)], size)


def merge_spans(spans: Iterable[SegmentSpan], size: int) -> list[SpanGroup]:
    """Group small spans until they reach about `size` bytes."""
    groups: list[SpanGroup] = []
    pending: list[SegmentSpan] = []
    nbytes = 0
    for span in spans:
        if pending and nbytes + span.nbytes > size:
            groups.append(SpanGroup(tuple(pending)))
            pending, nbytes = [], 0
        pending.append(span)
        nbytes += span.nbytes
    return [*groups, SpanGroup(tuple(pending))] if pending else groups


def split_span(location: LogLocation, span: SegmentSpan, size: int) -> Iterator[SegmentSpan]:
    """Yield a span in parts of about `size` raw bytes, as far as positions within it are known."""
    if span.nbytes <= size:
        yield span
    elif span.hint is None or any(one.end - one.offset > size for one in span.hint.ranges):
        yield from _split_by_index(location, span, size)
    else:
        yield from _split_by_ranges(span, size)


def with_size(location: LogLocation, span: SegmentSpan) -> SegmentSpan:
    """Return the span with its raw bytes, from the sidecar or else the file's size."""
    known = sidecar_summary(location, span.segment)
    nbytes = segment_size(location, span.segment)
    if known is not None and (span.first > span.segment or span.last < known.last_sequence):
        index = sidecar_positions(location, span.segment)
        if index is not None:
            _, offsets = _overlapping_ranges(span, *index.sample_positions(MAX_SEQUENCE)[:2], known.end)
            nbytes = offsets[-1] - offsets[0]
    return span._replace(nbytes=nbytes)


def _split_by_index(location: LogLocation, span: SegmentSpan, size: int) -> Iterator[SegmentSpan]:
    index = sidecar_positions(location, span.segment)
    if index is None:
        yield span
        return
    sequences, offsets = _overlapping_ranges(span, *index.sample_positions(MAX_SEQUENCE)[:2], index.end)
    first, before = span.first, offsets[0]
    for sequence, offset in zip(sequences[1:], offsets[1:-1], strict=True):
        if offset - before >= size:
            yield SegmentSpan(span.segment, first, sequence - 1, offset - before)
            first, before = sequence, offset
    yield SegmentSpan(span.segment, first, span.last, offsets[-1] - before)


def _overlapping_ranges(
    span: SegmentSpan, sequences: Sequence[int], offsets: Sequence[int], end: int
) -> tuple[list[int], list[int]]:
    """Return the first sequences of the index ranges that overlap the span, and their offsets.

    The first range may begin before the span. The end of the last one follows the offsets.
    """
    overlapping = [
        (sequence, offset, stop)
        for sequence, following, offset, stop in zip(
            sequences, [*sequences[1:], MAX_SEQUENCE], offsets, [*offsets[1:], end], strict=True
        )
        if sequence <= span.last and following > span.first
    ]
    if not overlapping:
        return [span.first], [0, end]
    return [one[0] for one in overlapping], [*(one[1] for one in overlapping), overlapping[-1][2]]


def _split_by_ranges(span: SegmentSpan, size: int) -> Iterator[SegmentSpan]:
    assert span.hint is not None
    numbers: list[int] = []
    nbytes = 0
    ranges = span.hint.ranges
    for number, indexed_range in enumerate(ranges):
        numbers.append(number)
        nbytes += indexed_range.end - indexed_range.offset
        if nbytes >= size or number + 1 == len(ranges):
            chosen = ranges[numbers[0] : number + 1]
            yield span._replace(
                first=max(span.first, chosen[0].first),
                last=min(span.last, chosen[-1].last),
                nbytes=nbytes,
                hint=span.hint._replace(ranges=chosen),
            )
            numbers, nbytes = [], 0
