"""The journal as a Spark data source, and `journal()`, the only way to load it.

`pushFilters` isn't implemented on purpose. In PySpark 4.3.0 a pushed filter stays with the loaded relation: a
DataFrame that is used a second time silently keeps the first use's filter. And without any filter the plan is kept
just so: a DataFrame held for long never sees new segments. So what to read goes in as one option, and every call of
`journal()` loads afresh.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pipeline.config import LogPlace
from pipeline.reading import Request, plan, read_span
from pipeline.schemas import record_schema, spark_ddl
from pipeline.segments import Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SOURCE = "sluice_journal"


class SpanPartition(InputPartition):
    """One task's share: a span, never a path, because the broker may move the file before the task starts."""

    def __init__(self, span: Span) -> None:
        super().__init__(None)
        self.span = span


class JournalSource(DataSource):
    """`spark.read.format("sluice_journal")` with the options `place` and `request`, both JSON."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        place = json.loads(options["place"])
        archive = place["archive"]
        self.place = LogPlace(Path(place["directory"]), Path(archive) if archive else None, place["instance"])
        self.request = Request.from_json(options["request"])

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def schema(self) -> str:
        return spark_ddl(record_schema(self.request.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        return JournalReader(self.place, self.request)


class JournalReader(DataSourceReader):
    """Plans on the driver, reads in the workers."""

    def __init__(self, place: LogPlace, request: Request) -> None:
        self.place = place
        self.request = request

    def partitions(self) -> list[InputPartition]:
        return [SpanPartition(span) for span in plan(self.place, self.request)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The partition's records. Spark calls once with None when there are no partitions at all."""
        settle_worker()
        if isinstance(partition, SpanPartition):
            yield from read_span(self.place, partition.span, self.request)


@cache
def settle_worker() -> None:
    """Once per Python worker: take what is imported out of garbage collection, which PySpark runs after every task
    and which took most of a short task's time."""
    gc.collect()
    gc.freeze()


def journal(
    spark: SparkSession,
    directory: Path,
    archive: Path | None = None,
    *,
    instance: str,
    columns: tuple[str, ...] | None = None,
    topics: tuple[str, ...] = (),
    start: int | None = None,
    end: int | None = None,
    start_at: int | None = None,
    end_at: int | None = None,
    durable: int | None = None,
    skip_gaps: bool = False,
) -> DataFrame:
    """A journal's records as a DataFrame of what stands there now; see `Request` for the arguments.

    Call it again for another choice of records, and after new ones have come. Filters and columns of the DataFrame
    itself are right but don't save any reading.
    """
    request = Request(columns, topics, start, end, start_at, end_at, durable, skip_gaps)
    place = {"directory": str(directory), "archive": str(archive) if archive else None, "instance": instance}
    spark.dataSource.register(JournalSource)
    reader = spark.read.format(SOURCE).option("place", json.dumps(place)).option("request", request.to_json())
    return reader.load()
