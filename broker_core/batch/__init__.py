"""Record batches: identical bytes on the wire, in the journal, in a spool and in Spark.

* layout: the binary format, field by field, with its limits; the dictionary; hash64
* builder: builds and stamps batches
* batch: reads batches
"""

from __future__ import annotations

from broker_core.batch.batch import Batch, read_batch_header
from broker_core.batch.builder import (
    build_batch,
    build_single_topic_batch,
    renumber,
    stamp_header,
    write_flags,
    write_log_position,
)
from broker_core.batch.layout import (
    CLAIM,
    CONFLATED,
    CONFLATION_OVER,
    EXPLICIT_SEQUENCES,
    HEADER_SIZE,
    MAGIC,
    MAX_BATCH_BYTES,
    MAX_DICTIONARY,
    MAX_RECORDS,
    MAX_SESSION,
    PROVEN,
    ROW_DTYPE,
    ROW_SIZE,
    SEQUENCE_SIZE,
    UNCERTAIN_TIME,
    VERSION,
    BatchHeader,
    Buffer,
    Record,
    Rows,
    hash64,
)

__all__ = [
    "CLAIM",
    "CONFLATED",
    "CONFLATION_OVER",
    "EXPLICIT_SEQUENCES",
    "HEADER_SIZE",
    "MAGIC",
    "MAX_BATCH_BYTES",
    "MAX_DICTIONARY",
    "MAX_RECORDS",
    "MAX_SESSION",
    "PROVEN",
    "ROW_DTYPE",
    "ROW_SIZE",
    "SEQUENCE_SIZE",
    "UNCERTAIN_TIME",
    "VERSION",
    "Batch",
    "BatchHeader",
    "Buffer",
    "Record",
    "Rows",
    "build_batch",
    "build_single_topic_batch",
    "hash64",
    "read_batch_header",
    "renumber",
    "stamp_header",
    "write_flags",
    "write_log_position",
]
