"""Runs work that reduces data, on Arrow, in Spark's Python workers.

Each item (a span of the journal, a policy) is a task, and only results come back. Spark only distributes
the tasks. Its SQL, which took a small job two CPU seconds to start, isn't needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark import SparkContext

from broker_core.errors import OperatorError, SluiceError
from sluice_spark.worker_setup import tune_worker

Item = TypeVar("Item")
Answer = tuple[str, bytes]
"""A worker's SluiceError as JSON, or "" and a table as an Arrow stream.

As JSON the error reaches the operator unchanged, not as a Java stack. Other exceptions are left to Spark,
which repeats the task on a cluster.
"""


def map_items(
    context: SparkContext,
    items: Sequence[Item],
    work: Callable[[Item], Iterator[pa.Table]],
    schema: pa.Schema,
) -> pa.Table:
    """Return the tables that `work` makes of all items, in their order.

    Raises the first SluiceError of a worker.
    """
    if not items:
        return schema.empty_table()
    tables = [schema.empty_table()]
    numbers = context.parallelize(range(len(items)), len(items))
    for error, image in numbers.mapPartitions(_worker(list(items), work, schema)).collect():
        if error:
            document = json.loads(error)
            raise OperatorError.from_dict(
                document["code"], document["message"], document["fix"], document["details"]
            )
        tables.append(pa.ipc.open_stream(image).read_all())
    return pa.concat_tables(tables).combine_chunks()


def _worker(
    items: list[Item], work: Callable[[Item], Iterator[pa.Table]], schema: pa.Schema
) -> Callable[[Iterable[int]], Iterable[Answer]]:
    def run(numbers: Iterable[int]) -> Iterable[Answer]:
        tune_worker()
        for number in numbers:
            try:
                for made in work(items[number]):
                    yield "", _image(made.select(schema.names).cast(schema))
            except SluiceError as error:
                yield json.dumps(error.as_dict()), b""

    return run


def _image(table: pa.Table) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, table.schema) as stream:
        stream.write_table(table)
    image: bytes = buffer.getvalue().to_pybytes()
    return image
