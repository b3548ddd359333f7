"""`readStream`: the log as a stream, from where it stood to the durable frontier, in micro-batches.

An offset is {origin: {"bookmark": "<origin>|<newest record done>|", "log": identity}}. The identity comes back out of the
checkpoint: a log that was made anew under the same name doesn't go on where the other one was. Spark compares offsets as
JSON text, so they are made in one place and their keys always stand in one order.

What is done is a lease (`broker_core.journal.reader_leases`): retention keeps what the checkpoint has still to read.
"""

from __future__ import annotations

import os
import socket
import sys
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from broker_core.bookmark import MAX_SEQUENCE, AfterBookmarks, parse_bookmark
from broker_core.errors import OperatorError
from broker_core.safe_text import say
from sluice_spark.arrow_reader import ReadRequest, plan_log, sequence_bounds
from sluice_spark.lease import LeaseHolder
from sluice_spark.location import LogLocation
from sluice_spark.log import LogSnapshot, examine_log, gap_error, other_log_error
from sluice_spark.options import StreamLimits
from sluice_spark.partition import SpanPartition, read_partition
from sluice_spark.segments import segment_size, sidecar_positions, sidecar_summary
from sluice_spark.tasks import plan_tasks
from sluice_spark.worker_setup import hide_tracebacks

BRIEF_LEASE_S = 600.0
"""Of a stream without a name of its own: it is renewed as long as it runs."""
ROWS_OF_UNKNOWN = 1_000
"""Records of a segment that nothing is known of are let through by so many, where bytes are limited."""


class JournalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets and partitions are made in one process that lives as long as the query; workers get a copy for `read`."""

    def __init__(
        self,
        place: LogLocation,
        request: ReadRequest,
        limits: StreamLimits,
        refused: OperatorError | None = None,
    ) -> None:
        """`refused` is what is raised where first something is asked."""
        self.place = place
        self.request = request
        self.limits = limits
        self.refused = refused
        self.final: int | None = None
        """The last record to read, once Spark has asked for what is available now."""

    # Offsets.

    def initialOffset(self) -> dict[str, Any]:
        """Before the first record that was asked for. JournalError bookmark_gone."""
        with hide_tracebacks():
            log = self._log()
            first, _ = sequence_bounds(log, self.request)
            for gap in log.gaps(self.request.start or 1, first) if not self.request.skip_gaps else []:
                if self.request.start is not None or gap.why != "removed":
                    raise gap_error(gap, log)
            if self.request.start is None and self.request.start_at is not None:
                first = self._reaching(log, self.request.start_at)
            self._hold(first)
            return self._offset(log, max(first, log.first) - 1)

    def _reaching(self, log: LogSnapshot, moment: int) -> int:
        """The first record of the first segment that reaches a moment; rows before it are left out when they are read."""
        for segment in log.segments:
            known = sidecar_summary(log.place, segment)
            if known is None or known.last_at >= moment:
                return segment
        return log.frontier + 1

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next micro-batch goes."""
        with hide_tracebacks():
            log = self._log(start)
            done = self._done(start)
            self._hold(done + 1)
            last = log.frontier if self.request.end is None else min(self.request.end, log.frontier)
            if self.final is not None:
                last = min(last, self.final)
            if last > done and not isinstance(limit, ReadAllAvailable):
                last = self._limited(log, done + 1, last, limit)
            return self._offset(log, max(done, last))

    def _limited(self, log: LogSnapshot, first: int, last: int, limit: ReadLimit) -> int:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self.limits.rows
        nbytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.limits.nbytes
        first = max(first, log.first)
        if rows is not None:
            first = next((begin for begin, _ in log.skipped().gaps_between(first, last)), last)
            last = min(last, first + rows - 1)
        if nbytes is not None:
            last = min(last, _within(log, first, last, nbytes))
        return last

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say."""
        if self.limits.rows is not None:
            return ReadMaxRows(self.limits.rows)
        return ReadAllAvailable() if self.limits.nbytes is None else ReadMaxBytes(self.limits.nbytes)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The frontier, for the query's progress."""
        with hide_tracebacks():
            log = self._log()
            return self._offset(log, log.frontier)

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes later isn't read by this run."""
        with hide_tracebacks():
            self.final = self._log().frontier

    # Reading.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The records behind `start` up to `end`. JournalError bookmark_gone."""
        with hide_tracebacks():
            first, last = self._done(start) + 1, self._done(end)
            if first > last:
                return []
            log = self._log(start)
            request = replace(self.request, start=first, end=last)
            spans = plan_log(log, request)
            if request.skip_gaps:
                for gap in log.gaps(first, last):
                    say(f"sluice: {gap}", sys.stderr)
            return [
                SpanPartition(log.place, part) for part in plan_tasks(log.place, spans, request.split_bytes)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's records."""
        assert isinstance(partition, SpanPartition)
        return read_partition(partition, self.request)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark never asks for anything up to `end` again: retention may have it."""
        self._hold(self._done(end) + 1)

    def stop(self) -> None:
        """A stream with a name holds the log until its lease runs out, or it comes back."""
        if not self.limits.reader:
            try:
                self._lease(0).release()
            except OSError as error:
                say(f"sluice: the lease couldn't be dropped: {error}", sys.stderr)

    # Helpers.

    def _log(self, offset: dict[str, Any] | None = None) -> LogSnapshot:
        if self.refused is not None:
            raise self.refused
        log = examine_log(self.place, self.request.durable)
        told = (offset or {}).get(log.place.instance, {}).get("log", "")
        if told and log.place.log and told != log.place.log:
            raise other_log_error(log.place.instance, "the checkpoint belongs to", str(told), log.place.log)
        return log

    def _offset(self, log: LogSnapshot, done: int) -> dict[str, Any]:
        """Spark compares offsets as text: always the same keys in the same order."""
        instance = log.place.instance
        return {instance: {"bookmark": f"{instance}|{done}|", "log": log.place.log or ""}}

    def _done(self, offset: dict[str, Any]) -> int:
        """The newest record that an offset has behind it. OperatorError other_origin."""
        mine = offset.get(self.place.instance)
        if mine is None:
            raise OperatorError(
                "other_origin",
                f"The checkpoint is of {', '.join(offset)}, and this is the log of {self.place.instance}.",
                "Use the checkpoint that belongs to it, or a new one.",
            )
        match parse_bookmark(str(mine["bookmark"])):
            case AfterBookmarks((one,)):
                return one.sequence
        raise OperatorError("bad_setting", f"{mine} isn't an offset of this source.", "Use a new checkpoint.")

    def _lease(self, sequence: int) -> LeaseHolder:
        host, named = socket.gethostname(), self.limits.reader
        name = named or f"stream.{host[:30]}.{os.getpid()}"
        owner = f"stream {named}" if named else f"stream on {host} (process {os.getpid()})"
        return LeaseHolder(self.place, name, owner, sequence, self.limits.lease_s if named else BRIEF_LEASE_S)

    def _hold(self, sequence: int) -> None:
        try:
            self._lease(sequence).renew()
        except OSError as error:
            say(f"sluice: the log can't be held: {error}", sys.stderr)


def _within(log: LogSnapshot, first: int, last: int, nbytes: int) -> int:
    """The last record so that `first` to it are about `nbytes` raw, one stretch of the index at least."""
    left = nbytes
    for number, segment in enumerate(log.segments):
        end = log.end_of(number)
        if end < first:
            continue
        index = sidecar_positions(log.place, segment)
        if index is None:
            # Not sealed yet: nothing is known but how large it may become.
            size = max(segment_size(log.place, segment), 1)
            rows = max(ROWS_OF_UNKNOWN, (end - segment + 1) * left // size)
            return min(last, max(first, segment) + rows - 1)
        sequences, offsets, _ = index.sample_positions(MAX_SEQUENCE)
        at = max(bisect_left(sequences, first + 1) - 1, 0)
        begin = offsets[at] if sequences else 0
        if index.end - begin > left:
            stop = bisect_left(offsets, begin + left, lo=at + 1)
            if stop < len(sequences):
                return min(last, max(sequences[stop] - 1, first))
        left -= index.end - begin
        if left <= 0:
            return min(last, end)
    return last
