"""How records lie in the lake: which stretches belong in one file, in what order, and which are there already.

A file of the lake holds one unbroken interval of sequences of one day, sorted by topic and then sequence, and is
named by the interval and the log's identity: `day=2026-11-21/<instance>.<first>-<last>.<log>.parquet`. So the directory
listing is all the book-keeping there is. A run that is repeated, or was killed half way, writes what isn't covered
yet, and nothing twice.
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
"""How often a text has to stand in a file, on average, to be worth a dictionary of the whole of it."""


class LakeFileName(NamedTuple):
    """Parts of a lake file's name: first and last record, and the beginning of the log's identity (`tag`)."""

    first: int
    last: int
    tag: str


def log_tag(log: str) -> str:
    """What of a log's identity stands in names: enough to tell logs of one instance apart at a glance."""
    return log[:TAG_LENGTH]


def file_name(instance: str, first: int, last: int, tag: str) -> str:
    """The name of the file that holds this interval."""
    return f"{instance}.{first:020d}-{last:020d}.{tag}{SUFFIX}"


def parse_file_name(name: str, instance: str) -> LakeFileName | None:
    """What a file's name says; None when the file isn't one of this instance's."""
    middle = name.removeprefix(f"{instance}.").removesuffix(SUFFIX)
    interval, _, tag = middle.partition(".")
    first, dash, last = interval.partition("-")
    if not (dash and first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        return None
    found = LakeFileName(int(first), int(last), tag)
    return found if tag and name == file_name(instance, *found) else None


def day_name(day: int) -> str:
    """The directory of a day, counted from 1970."""
    return f"day={(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).date().isoformat()}"


def split_by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(day, records) of each part of one day and unbroken sequences, in order, without a copy."""
    sequences = batch.column("sequence").to_numpy(zero_copy_only=False)
    days = batch.column("accepted_at").cast(pa.int64()).to_numpy(zero_copy_only=False) // DAY_US
    cuts = np.flatnonzero((np.diff(sequences) != 1) | (np.diff(days) != 0)) + 1
    edges = [0, *cuts.tolist(), batch.num_rows]
    for start, stop in pairwise(edges):
        yield int(days[start]), batch.slice(start, stop - start)


def sorted_parts(columns: dict[str, pa.ChunkedArray], rows: int) -> Iterator[pa.Table]:
    """By topic, then sequence, in tables of so many rows. The records come in sequence, so a stable sort of the topics' ranks is
    enough, and sorting small numbers is many times faster than sorting texts. Texts are dictionaries from here on: they repeat, and
    what is moved and written of them is numbers.

    Takes the columns out of what it is given, so that there is never more than one of them in memory twice.
    """
    names = list(columns)
    topics = columns.pop("topic").dictionary_encode().combine_chunks()
    whole = {name: _compact(columns.pop(name)) for name in list(columns)}
    by_rank = pc.sort_indices(topics.dictionary)
    # Of numbers this small NumPy's sort goes by their digits, five times faster.
    ranks = np.empty(len(by_rank), np.uint16 if len(by_rank) <= MAX_SMALL else np.uint32)
    ranks[by_rank.to_numpy()] = np.arange(len(ranks), dtype=ranks.dtype)
    ranked = ranks[topics.indices.to_numpy(zero_copy_only=False)]
    places = np.argsort(ranked, kind="stable").astype(np.uint32)
    ranked, ordered = ranked[places], topics.dictionary.take(by_rank)
    for start in range(0, len(places), rows):
        some = pa.array(places[start : start + rows])
        part = {name: column.take(some) for name, column in whole.items()}
        here = ranked[start : start + rows]
        first, last = int(here[0]), int(here[-1])
        topic = pa.DictionaryArray.from_arrays(
            pa.array((here - ranks.dtype.type(first)).astype(np.int32)),
            ordered.slice(first, last - first + 1),
        )
        yield pa.table({name: topic if name == "topic" else part[name] for name in names})


def _compact(column: pa.ChunkedArray) -> pa.Array:
    """In one piece, and as a dictionary where it is of texts that repeat."""
    if pa.types.is_string(column.type):
        encoded = column.dictionary_encode()
        if encoded.num_chunks and len(encoded.chunk(0).dictionary) * REPEATED <= len(column):
            column = encoded
    return column.combine_chunks()


def missing_intervals(covered: Iterable[Interval], first: int, last: int) -> list[Interval]:
    """The parts of first..last that no interval covers. OperatorError lake_overlap when two of them share records."""
    gaps: list[Interval] = []
    expected, before = first, 0
    for start, stop in sorted(covered):
        if start <= before:
            raise OperatorError(
                "lake_overlap",
                f"Two files of the lake hold record {start}.",
                "Remove one of them; the next run writes again what is missing.",
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
