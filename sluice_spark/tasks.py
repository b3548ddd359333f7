"""Division of spans into tasks of about equal size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from broker_core.bookmark import MAX_SEQUENCE
from sluice_spark.location import LogLocation
from sluice_spark.segments import SegmentSpan, segment_size, sidecar_positions, sidecar_summary

FEW_TASKS: Final = 4
LEAST_BYTES: Final = 8 * 1024 * 1024
"""Minimum bytes of each of FEW_TASKS tasks that share a small read.

One task would leave other cores idle. Each further task costs about 5 ms of the driver's time.
"""


class SpanGroup(NamedTuple):
    """Spans that one task reads, in order."""

    spans: tuple[SegmentSpan, ...]


def plan_tasks(
    place: LogLocation, spans: Sequence[SegmentSpan], most: int, least: int = LEAST_BYTES
) -> list[SpanGroup]:
    """Divide spans into tasks of about `most` raw bytes.

    Tasks are smaller if one or two would read everything.
    """
    whole = sum(span.nbytes for span in spans)
    tasks = min(FEW_TASKS, whole // least)
    size = min(most, -(-whole // tasks)) if tasks else most
    return merge_spans([part for span in spans for part in split_span(place, span, size)], size)


def merge_spans(spans: Iterable[SegmentSpan], size: int) -> list[SpanGroup]:
    """Group small spans until they reach about `size` bytes."""
    made: list[SpanGroup] = []
    held: list[SegmentSpan] = []
    nbytes = 0
    for span in spans:
        if held and nbytes + span.nbytes > size:
            made.append(SpanGroup(tuple(held)))
            held, nbytes = [], 0
        held.append(span)
        nbytes += span.nbytes
    return [*made, SpanGroup(tuple(held))] if held else made


def split_span(place: LogLocation, span: SegmentSpan, size: int) -> Iterator[SegmentSpan]:
    """Yield a span in parts of about `size` raw bytes, as far as positions within it are known."""
    if span.nbytes <= size:
        yield span
    elif span.choice is None or any(one.end - one.offset > size for one in span.choice.stretches):
        yield from _by_index(place, span, size)
    else:
        yield from _by_stretches(span, size)


def with_size(place: LogLocation, span: SegmentSpan) -> SegmentSpan:
    """Return the span with its raw bytes, from the sidecar or else the file's size."""
    known = sidecar_summary(place, span.segment)
    nbytes = segment_size(place, span.segment)
    if known is not None and (span.first > span.segment or span.last < known.last_sequence):
        index = sidecar_positions(place, span.segment)
        if index is not None:
            _, offsets = _inside(span, *index.sample_positions(MAX_SEQUENCE)[:2], known.end)
            nbytes = offsets[-1] - offsets[0]
    return span._replace(nbytes=nbytes)


def _by_index(place: LogLocation, span: SegmentSpan, size: int) -> Iterator[SegmentSpan]:
    index = sidecar_positions(place, span.segment)
    if index is None:
        yield span
        return
    sequences, offsets = _inside(span, *index.sample_positions(MAX_SEQUENCE)[:2], index.end)
    first, before = span.first, offsets[0]
    for sequence, offset in zip(sequences[1:], offsets[1:-1], strict=True):
        if offset - before >= size:
            yield SegmentSpan(span.segment, first, sequence - 1, offset - before)
            first, before = sequence, offset
    yield SegmentSpan(span.segment, first, span.last, offsets[-1] - before)


def _inside(
    span: SegmentSpan, sequences: Sequence[int], offsets: Sequence[int], end: int
) -> tuple[list[int], list[int]]:
    """Return the first sequences of the index ranges that overlap the span, and their offsets.

    The first range may begin before the span. The end of the last one follows the offsets.
    """
    found = [
        (sequence, offset, stop)
        for sequence, following, offset, stop in zip(
            sequences, [*sequences[1:], MAX_SEQUENCE], offsets, [*offsets[1:], end], strict=True
        )
        if sequence <= span.last and following > span.first
    ]
    if not found:
        return [span.first], [0, end]
    return [one[0] for one in found], [*(one[1] for one in found), found[-1][2]]


def _by_stretches(span: SegmentSpan, size: int) -> Iterator[SegmentSpan]:
    assert span.choice is not None
    held: list[int] = []
    nbytes = 0
    stretches = span.choice.stretches
    for number, stretch in enumerate(stretches):
        held.append(number)
        nbytes += stretch.end - stretch.offset
        if nbytes >= size or number + 1 == len(stretches):
            chosen = stretches[held[0] : number + 1]
            yield span._replace(
                first=max(span.first, chosen[0].first),
                last=min(span.last, chosen[-1].last),
                nbytes=nbytes,
                choice=span.choice._replace(stretches=chosen),
            )
            held, nbytes = [], 0
