"""The Spark data source `sluice` for `spark.read` and `spark.readStream`.

`pushFilters` is deliberately missing. In PySpark 4.3.0 a pushed filter stays with the loaded relation: a
DataFrame that is used a second time silently applies the first use's filter. So topics, filter and columns
are options. The plan is cached even without filters: a DataFrame or view sees no segments newer than
itself. Load it again to see them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from broker_core.errors import OperatorError
from sluice_spark.arrow_reader import ReadRequest, plan_log
from sluice_spark.columns import record_schema, spark_ddl
from sluice_spark.location import LogLocation
from sluice_spark.log import examine_log
from sluice_spark.options import READ_ONLY, check_batch_options, read_options
from sluice_spark.partition import SpanPartition, read_partition
from sluice_spark.tasks import plan_tasks
from sluice_spark.worker_setup import hide_tracebacks, tune_worker

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SOURCE = "sluice"


class SluiceSource(DataSource):
    """Data source that presents a journal as a table. sluice_spark/options.py has its options."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        tune_worker()
        with hide_tracebacks():
            self.parsed_options = read_options(options)

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def schema(self) -> str:
        return spark_ddl(record_schema(self.parsed_options.request.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        with hide_tracebacks():
            check_batch_options(self.options)
            self._check_schema(schema)
        return JournalReader(self.parsed_options.location, self.parsed_options.request)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from broker_core.journal.reader_leases import remove_expired_leases
        from sluice_spark.stream import JournalStream

        remove_expired_leases(
            self.parsed_options.location.directory, self.parsed_options.location.instance, time.time_ns()
        )
        refused: OperatorError | None = None
        try:
            self._check_schema(schema)
        except OperatorError as error:
            refused = error  # raised here, PySpark would report an UnboundLocalError of its own instead
        return JournalStream(*self.parsed_options, refused)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with hide_tracebacks():
            raise OperatorError("bad_setting", "The format sluice is read-only.", READ_ONLY)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        with hide_tracebacks():
            raise OperatorError("bad_setting", "The format sluice is read-only.", READ_ONLY)

    def _check_schema(self, schema: StructType) -> None:
        """Check that a schema given by the user is the source's own. Raises OperatorError bad_columns.

        Otherwise Spark would report the difference itself, in a worker and in its own terms.
        """
        requested = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema.fields)
        if requested != self.schema():
            raise OperatorError(
                "bad_columns",
                f"The given schema differs from the journal's: {self.schema()}.",
                "Leave schema() out, and select columns with the option columns.",
            )


class JournalReader(DataSourceReader):
    """Batch reader: plans on the driver, reads in the workers."""

    def __init__(self, location: LogLocation, request: ReadRequest) -> None:
        self.location = location
        self.request = request

    def partitions(self) -> list[InputPartition]:
        tune_worker()
        with hide_tracebacks():
            log = examine_log(self.location, self.request.durable)
            spans = plan_log(log, self.request)
            return [
                SpanPartition(log.location, part)
                for part in plan_tasks(log.location, spans, self.request.split_bytes)
            ]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the partition's records. Spark calls this once with None if there are no partitions."""
        if isinstance(partition, SpanPartition):
            yield from read_partition(partition, self.request)
