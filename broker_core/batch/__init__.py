"""Record batches: the same bytes on the wire, in the journal, in a spool and in Spark.

* layout: THE FORMAT, field by field, with its bounds; hash64
* dictionary: the publisher's name and the topics, as bytes and as text
* building: batches made, and stamped
* batch: a batch read
"""

from __future__ import annotations

from broker_core.batch.batch import (
    Batch,
    peek,
)
from broker_core.batch.building import (
    build,
    build_one_topic,
    locate,
    renumber,
    stamp,
    write_flags,
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
    "VERSION",
    "Batch",
    "BatchHeader",
    "Buffer",
    "Record",
    "Rows",
    "build",
    "build_one_topic",
    "hash64",
    "locate",
    "peek",
    "renumber",
    "stamp",
    "write_flags",
]
