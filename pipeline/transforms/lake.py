"""Layout of records in the lake: which records form a file, in what order, and which are stored already.

A file of the lake has one unbroken interval of sequences of one day, sorted by topic and sequence. Its name
has the interval and the log's identity: `day=2026-11-21/<instance>.<first>-<last>.<log>.parquet`. So the
directory listing is the only bookkeeping. A run that is repeated after success or a crash writes what is
missing, and nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker_core.errors import OperatorError

Interval = tuple[int, int]
DAY_US = 86_400_000_000
SUFFIX = ".parquet"
TAG_LENGTH = 8
MAX_SMALL = 1 << 16
REPEATED = 8
"""Minimum mean repetitions of a text in a file for which a dictionary of the whole file is used."""


class LakeFileName(NamedTuple):
    """Parts of a lake file's name: first and last record, and the beginning of the log's identity (`tag`)."""

    first: int
    last: int
    tag: str


def log_tag(log: str) -> str:
    """Return the part of a log's identity that names contain, enough to distinguish logs of one instance."""
    return log[:TAG_LENGTH]


def file_name(instance: str, first: int, last: int, tag: str) -> str:
    """Return the name of the file with this interval."""
    return f"{instance}.{first:020d}-{last:020d}.{tag}{SUFFIX}"


def parse_file_name(name: str, instance: str) -> LakeFileName | None:
    """Parse a file's name; None if it isn't a lake file of this instance."""
    middle = name.removeprefix(f"{instance}.").removesuffix(SUFFIX)
    interval, _, tag = middle.partition(".")
    first, dash, last = interval.partition("-")
    if not (dash and first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        return None
    found = LakeFileName(int(first), int(last), tag)
    return found if tag and name == file_name(instance, *found) else None


def day_name(day: int) -> str:
    """Return the directory of a day, counted from 1970."""
    return f"day={(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).date().isoformat()}"


def split_by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (day, records) of each part with one day and unbroken sequences, in order, without copying."""
    sequences = batch.column("sequence").to_numpy(zero_copy_only=False)
    days = batch.column("accepted_at").cast(pa.int64()).to_numpy(zero_copy_only=False) // DAY_US
    cuts = np.flatnonzero((np.diff(sequences) != 1) | (np.diff(days) != 0)) + 1
    edges = [0, *cuts.tolist(), batch.num_rows]
    for start, stop in pairwise(edges):
        yield int(days[start]), batch.slice(start, stop - start)


def sorted_parts(columns: dict[str, pa.ChunkedArray], rows: int) -> Iterator[pa.Table]:
    """Yield the records by topic, then sequence, in tables of `rows` rows.

    Empties `columns` meanwhile, to save memory.

    Records arrive in sequence order, so a stable sort of the topics' ranks suffices. Sorting small numbers
    is many times faster than sorting texts. Repeated texts become dictionaries, so only numbers are moved
    and written.
    """
    names = list(columns)
    topics = columns.pop("topic").dictionary_encode().combine_chunks()
    compacted = {name: _compact(columns.pop(name)) for name in list(columns)}
    by_rank = pc.sort_indices(topics.dictionary)
    # NumPy sorts 16-bit numbers by radix, five times faster.
    ranks = np.empty(len(by_rank), np.uint16 if len(by_rank) <= MAX_SMALL else np.uint32)
    ranks[by_rank.to_numpy()] = np.arange(len(ranks), dtype=ranks.dtype)
    ranked = ranks[topics.indices.to_numpy(zero_copy_only=False)]
    order = np.argsort(ranked, kind="stable").astype(np.uint32)
    ranked, ordered = ranked[order], topics.dictionary.take(by_rank)
    for start in range(0, len(order), rows):
        some = pa.array(order[start : start + rows])
        part = {name: column.take(some) for name, column in compacted.items()}
        part_ranks = ranked[start : start + rows]
        first, last = int(part_ranks[0]), int(part_ranks[-1])
        topic = pa.DictionaryArray.from_arrays(
            pa.array((part_ranks - ranks.dtype.type(first)).astype(np.int32)),
            ordered.slice(first, last - first + 1),
        )
        yield pa.table({name: topic if name == "topic" else part[name] for name in names})


def _compact(column: pa.ChunkedArray) -> pa.Array:
    """Return the column in one piece, as a dictionary if it has texts that repeat."""
    if pa.types.is_string(column.type):
        encoded = column.dictionary_encode()
        if encoded.num_chunks and len(encoded.chunk(0).dictionary) * REPEATED <= len(column):
            column = encoded
    return column.combine_chunks()


def missing_intervals(covered: Iterable[Interval], first: int, last: int) -> list[Interval]:
    """Return the parts of first..last that no interval covers.

    Raises OperatorError lake_overlap if two overlap.
    """
    gaps: list[Interval] = []
    expected, before = first, 0
    for start, stop in sorted(covered):
        if start <= before:
            raise OperatorError(
                "lake_overlap",
                f"Two files of the lake have record {start}.",
                "Remove one of them. The next run writes missing records again.",
                first=start,
            )
        before = stop
        if start > expected:
            gaps.append((expected, min(start - 1, last)))
        expected = max(expected, stop + 1)
        if expected > last:
            break
    if expected <= last:
        gaps.append((expected, last))
    return [(start, stop) for start, stop in gaps if start <= stop]
