"""`readStream`: the log as a stream of micro-batches, up to the durable frontier.

An offset is {origin: {"bookmark": "<origin>|<newest processed record>|", "log": identity}}. The checkpoint
returns the identity, so the stream detects a new log under an old name and doesn't continue in it. Spark
compares offsets as JSON text, so one function makes them, with keys in constant order.

Progress is stored in a lease (`broker_core.journal.reader_leases`), so that retention doesn't remove
records that the checkpoint has still to read.
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
from broker_core.safe_text import print_line
from sluice_spark.arrow_reader import ReadRequest, plan_log, sequence_bounds
from sluice_spark.lease import LeaseHolder
from sluice_spark.location import LogLocation
from sluice_spark.log import LogSnapshot, examine_leased_log, examine_log, gap_error, other_log_error
from sluice_spark.options import StreamLimits
from sluice_spark.partition import SpanPartition, read_partition
from sluice_spark.segments import segment_size, sidecar_positions, sidecar_summary
from sluice_spark.tasks import plan_tasks
from sluice_spark.worker_setup import hide_tracebacks

BRIEF_LEASE_S = 600.0
"""Lease term, in seconds, of a stream without a name. It is renewed while the stream runs."""
ROWS_OF_UNKNOWN = 1_000
"""Minimum records that a byte limit admits from a segment without a sidecar."""


class JournalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader. Offsets and partitions are made in one process that lives as long as the query.

    Workers receive a copy for `read`.
    """

    def __init__(
        self,
        location: LogLocation,
        request: ReadRequest,
        limits: StreamLimits,
        refused: OperatorError | None = None,
    ) -> None:
        """Create the stream.

        `refused`: an error to raise at the first use; see `SluiceSource.streamReader`.
        """
        self.location = location
        self.request = request
        self.limits = limits
        self.refused = refused
        self.final: int | None = None
        """The last record to read, after `prepareForTriggerAvailableNow`."""

    # Offsets.

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the first requested record. Raises JournalError bookmark_gone."""
        with hide_tracebacks():
            self._renew_lease(self.request.start or self._examine().first)
            # Segments may have been removed before the lease was written.
            log = self._examine(leased=True)
            first, _ = sequence_bounds(log, self.request)
            for gap in log.gaps(self.request.start or 1, first) if not self.request.skip_gaps else []:
                if self.request.start is not None or gap.why != "removed":
                    raise gap_error(gap, log)
            if self.request.start is None and self.request.start_at is not None:
                first = self._first_reaching(log, self.request.start_at)
            self._renew_lease(first)
            return self._make_offset(log, max(first, log.first) - 1)

    def _first_reaching(self, log: LogSnapshot, moment: int) -> int:
        """Return the first record of the first segment that reaches a time (ns UTC).

        Earlier rows of that segment are filtered when they are read.
        """
        for segment in log.segments:
            known = sidecar_summary(log.location, segment)
            if known is None or known.last_at >= moment:
                return segment
        return log.frontier + 1

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch."""
        with hide_tracebacks():
            log = self._examine(start)
            done = self._processed_sequence(start)
            self._renew_lease(done + 1)
            last = log.frontier if self.request.end is None else min(self.request.end, log.frontier)
            if self.final is not None:
                last = min(last, self.final)
            if last > done and not isinstance(limit, ReadAllAvailable):
                last = self._limit_batch(log, done + 1, last, limit)
            return self._make_offset(log, max(done, last))

    def _limit_batch(self, log: LogSnapshot, first: int, last: int, limit: ReadLimit) -> int:
        """Return the last record of the next micro-batch under the limits of rows and bytes."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self.limits.rows
        nbytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.limits.nbytes
        first = max(first, log.first)
        if rows is not None:
            first = next((begin for begin, _ in log.skipped_sequences().gaps_between(first, last)), last)
            last = min(last, first + rows - 1)
        if nbytes is not None:
            last = min(last, _limit_by_bytes(log, first, last, nbytes))
        return last

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set."""
        if self.limits.rows is not None:
            return ReadMaxRows(self.limits.rows)
        return ReadAllAvailable() if self.limits.nbytes is None else ReadMaxBytes(self.limits.nbytes)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the durable frontier, for the query's progress."""
        with hide_tracebacks():
            log = self._examine()
            return self._make_offset(log, log.frontier)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run at the present frontier."""
        with hide_tracebacks():
            self.final = self._examine().frontier

    # Reading.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return partitions of the records after `start` up to `end`. Raises JournalError bookmark_gone."""
        with hide_tracebacks():
            first, last = self._processed_sequence(start) + 1, self._processed_sequence(end)
            if first > last:
                return []
            log = self._examine(start, leased=True)
            request = replace(self.request, start=first, end=last)
            spans = plan_log(log, request)
            if request.skip_gaps:
                for gap in log.gaps(first, last):
                    print_line(f"sluice: {gap}", sys.stderr)
            return [
                SpanPartition(log.location, part)
                for part in plan_tasks(log.location, spans, request.split_bytes)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task's partition."""
        assert isinstance(partition, SpanPartition)
        return read_partition(partition, self.request)

    def commit(self, end: dict[str, Any]) -> None:
        """Release the records up to `end`, because Spark doesn't request them again."""
        self._renew_lease(self._processed_sequence(end) + 1)

    def stop(self) -> None:
        """Release the lease of an unnamed stream.

        A named one remains until it expires or the stream returns.
        """
        if not self.limits.reader:
            try:
                self._make_lease(0).release()
            except OSError as error:
                print_line(f"sluice: the lease on the log can't be released: {error}", sys.stderr)

    # Helpers.

    def _examine(self, offset: dict[str, Any] | None = None, *, leased: bool = False) -> LogSnapshot:
        """Take a snapshot of the log, and check it against the checkpoint.

        `leased`: the stream has written its lease, and plans with the snapshot. Raises OperatorError
        other_log.
        """
        if self.refused is not None:
            raise self.refused
        examine = examine_leased_log if leased else examine_log
        log = examine(self.location, self.request.durable)
        checkpoint_log = (offset or {}).get(log.location.instance, {}).get("log", "")
        if checkpoint_log and log.location.log and checkpoint_log != log.location.log:
            raise other_log_error(
                log.location.instance, "the checkpoint belongs to", str(checkpoint_log), log.location.log
            )
        return log

    def _make_offset(self, log: LogSnapshot, done: int) -> dict[str, Any]:
        """Make an offset. Spark compares offsets as text, so the keys have a constant order."""
        instance = log.location.instance
        return {instance: {"bookmark": f"{instance}|{done}|", "log": log.location.log or ""}}

    def _processed_sequence(self, offset: dict[str, Any]) -> int:
        """Return the newest record before an offset. Raises OperatorError other_origin."""
        instance_offset = offset.get(self.location.instance)
        if instance_offset is None:
            raise OperatorError(
                "other_origin",
                f"The checkpoint belongs to {', '.join(offset)}, and this is the log of "
                f"{self.location.instance}.",
                "Use the checkpoint that belongs to it, or a new one.",
            )
        match parse_bookmark(str(instance_offset["bookmark"])):
            case AfterBookmarks((one,)):
                return one.sequence
        raise OperatorError(
            "bad_setting", f"{instance_offset} isn't an offset of this source.", "Use a new checkpoint."
        )

    def _make_lease(self, sequence: int) -> LeaseHolder:
        """Return the stream's lease from `sequence` on."""
        host, named = socket.gethostname(), self.limits.reader
        name = named or f"stream.{host[:30]}.{os.getpid()}"
        owner = f"stream {named}" if named else f"stream on {host} (process {os.getpid()})"
        return LeaseHolder(
            self.location, name, owner, sequence, self.limits.lease_s if named else BRIEF_LEASE_S
        )

    def _renew_lease(self, sequence: int) -> None:
        """Renew the stream's lease from `sequence` on. A failure is only reported."""
        try:
            self._make_lease(sequence).renew()
        except OSError as error:
            print_line(f"sluice: the lease on the log can't be renewed: {error}", sys.stderr)


def _limit_by_bytes(log: LogSnapshot, first: int, last: int, nbytes: int) -> int:
    """Return the last record of a micro-batch from `first` with about `nbytes` raw bytes.

    At least one range of the index is included.
    """
    remaining = nbytes
    for number, segment in enumerate(log.segments):
        end = log.segment_end(number)
        if end < first:
            continue
        index = sidecar_positions(log.location, segment)
        if index is None:
            # Not sealed: only its file's size is known, which is an upper limit.
            size = max(segment_size(log.location, segment), 1)
            rows = max(ROWS_OF_UNKNOWN, (end - segment + 1) * remaining // size)
            return min(last, max(first, segment) + rows - 1)
        sequences, offsets, _ = index.sample_positions(MAX_SEQUENCE)
        at = max(bisect_left(sequences, first + 1) - 1, 0)
        begin = offsets[at] if sequences else 0
        if index.end - begin > remaining:
            stop = bisect_left(offsets, begin + remaining, lo=at + 1)
            if stop < len(sequences):
                return min(last, max(sequences[stop] - 1, first))
        remaining -= index.end - begin
        if remaining <= 0:
            return min(last, end)
    return last
