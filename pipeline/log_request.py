"""Checks of the records that a job requests, before the job writes anything."""

from __future__ import annotations

import argparse
from dataclasses import replace

from broker_core.errors import OperatorError
from sluice_spark.arrow_reader import ReadRequest, plan_log, read_span, sequence_bounds
from sluice_spark.log import LogSnapshot
from sluice_spark.options import RangeBound
from sluice_spark.segments import SegmentSpan


def check_bounds(log: LogSnapshot, arguments: argparse.Namespace) -> None:
    """Check the sequence bounds. Raises OperatorError bad_range if no record is within them."""
    first, last = sequence_bounds(log, ReadRequest(start=arguments.start, end=arguments.end))
    if last < first and log.segments:
        raise _nothing(log, f"it begins with record {log.first}, and up to {last} was asked for")


def plan_spans(log: LogSnapshot, request: ReadRequest) -> list[SegmentSpan]:
    """Plan a request that has at least one record. Raises OperatorError bad_range."""
    spans = plan_log(log, request)
    one = replace(request, columns=("sequence",), topics=(), filter="", skip_gaps=True)
    if not any(True for span in spans for _ in read_span(log.place, span, one)):
        timed = request.start_at is not None or request.end_at is not None
        raise _nothing(
            log,
            "no record was accepted in the time that was asked for"
            if timed and log.segments
            else f"it holds records {log.first} to {log.frontier}"
            if log.segments
            else "it has no records yet",
        )
    return spans


def check_bounds_order(since: RangeBound, at: RangeBound, log: LogSnapshot) -> None:
    """Check that `since` isn't after `at`, as far as both are comparable. Raises OperatorError bad_range."""
    later = log.frontier if at == RangeBound() else at.sequence
    if (since.sequence is not None and later is not None and since.sequence > later) or (
        since.at is not None and at.at is not None and since.at > at.at
    ):
        raise OperatorError("bad_range", "--since comes after --at.", "Swap them.")


def _nothing(log: LogSnapshot, why: str) -> OperatorError:
    return OperatorError(
        "bad_range",
        f"The range holds nothing of the log of {log.place.instance}: {why}.",
        "Give another range.",
        first=log.first,
        last=log.frontier,
    )
