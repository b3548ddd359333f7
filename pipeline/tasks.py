"""Work that reduces data, on Arrow inside Spark's Python workers: one item (a span of the journal, a policy) a task, and
only results come back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from broker_core.errors import OperatorError, SluiceError
from sluice_spark.columns import spark_ddl
from sluice_spark.worker import settle_worker

ERROR = "error"
"""The column in which a worker's own error travels, alone in its row: so it reaches the operator as itself and not as a
stack of Java. Other exceptions are left to Spark, which tries the task again on a cluster."""

Item = TypeVar("Item")


def gather(
    spark: SparkSession, items: Sequence[Item], work: Callable[[Item], Iterator[pa.Table]], schema: pa.Schema
) -> pa.Table:
    """What `work` makes of every item, in their order. Raises the first SluiceError that a worker met."""
    if not items:
        return schema.empty_table()
    whole = pa.schema([*schema, ("task", pa.int64()), (ERROR, pa.string())])
    numbers = spark.range(0, len(items), 1, len(items))
    found = numbers.mapInArrow(_worker(list(items), work, whole), spark_ddl(whole)).toArrow()
    for text in found.column(ERROR).drop_null().to_pylist():
        told = json.loads(text)
        raise OperatorError.received(told["code"], told["message"], told["fix"], told["details"])
    ordered = found.take(pa.array(_order(found), pa.int64()))
    return ordered.select(schema.names).cast(schema).combine_chunks()


def _order(found: pa.Table) -> list[int]:
    tasks = found.column("task").to_pylist()
    return sorted(range(len(tasks)), key=tasks.__getitem__)


def _worker(
    items: list[Item], work: Callable[[Item], Iterator[pa.Table]], whole: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    for made in work(items[number]):
                        rows = made.num_rows
                        made = made.append_column("task", pa.array([number] * rows, pa.int64()))
                        made = made.append_column(ERROR, pa.nulls(rows, pa.string()))
                        yield from made.select(whole.names).cast(whole).to_batches()
                except SluiceError as error:
                    row = {"task": number, ERROR: json.dumps(error.as_dict())}
                    yield pa.RecordBatch.from_pylist([row], schema=whole)

    return run
