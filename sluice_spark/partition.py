"""The partition type of the data source and its reader, shared by the batch source and the stream."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sluice_spark.arrow_reader import ReadRequest, read_spans
from sluice_spark.location import LogLocation
from sluice_spark.tasks import SpanGroup
from sluice_spark.worker_setup import hide_tracebacks, tune_worker


class SpanPartition(InputPartition):
    """The spans that one Spark task reads. No paths: the broker may move a file before the task starts."""

    def __init__(self, place: LogLocation, part: SpanGroup) -> None:
        super().__init__(None)
        self.place = place
        self.part = part


def read_partition(partition: SpanPartition, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """Yield the records of `partition` that `request` selects, as Arrow batches in log order.

    Runs in the worker, which it tunes first. Errors of the source leave without a traceback.
    """
    tune_worker()
    with hide_tracebacks():
        yield from read_spans(partition.place, partition.part.spans, request)
