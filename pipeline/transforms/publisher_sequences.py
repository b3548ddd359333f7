"""Publisher sequences: missing, repeated and out-of-order ones. Pure.

A publisher with sequences numbers its messages consecutively. Records are reduced to *runs* where they are
read: records of one publisher with consecutive numbers, in log order. All results follow from the runs,
however the log was divided into spans.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

RUNS: Final = pa.schema(
    [
        ("publisher", pa.string()),
        ("sequence", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("records", pa.int64()),
    ]
)
"""`sequence`: log sequence of the run's first record.

`first`, `last`: publisher sequences; null without sequences.
"""

PUBLISHERS: Final = pa.schema(
    [
        ("publisher", pa.string()),
        ("records", pa.int64()),
        ("unnumbered", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("missing", pa.int64()),
        ("repeated", pa.int64()),
        ("out_of_order", pa.int64()),
    ]
)
FINDINGS: Final = pa.schema(
    [
        ("what", pa.string()),
        ("publisher", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("records", pa.int64()),
        ("sequence", pa.int64()),
    ]
)
"""`sequence`: log sequence at which the problem shows."""


def sequence_runs(batch: pa.RecordBatch) -> pa.Table:
    """Return the runs of records, which must be in log order.

    `batch`: with the columns sequence, publisher and publisher_sequence.
    """
    if batch.num_rows == 0:
        return RUNS.empty_table()
    names = pc.dictionary_encode(batch.column("publisher"))
    codes = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    numbered = pc.is_valid(batch.column("publisher_sequence")).to_numpy(zero_copy_only=False)
    numbers = pc.fill_null(batch.column("publisher_sequence"), 0).to_numpy(zero_copy_only=False)
    sequences = batch.column("sequence").to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    codes, numbered, numbers, sequences = codes[order], numbered[order], numbers[order], sequences[order]
    same = (codes[1:] == codes[:-1]) & (numbered[1:] == numbered[:-1])
    continues_run = same & (~numbered[1:] | (numbers[1:] == numbers[:-1] + 1))
    starts = np.concatenate(([0], np.flatnonzero(~continues_run) + 1))
    ends = np.concatenate((starts[1:], [len(codes)]))
    lacks = ~numbered[starts]
    return pa.table(
        {
            "publisher": names.dictionary.take(pa.array(codes[starts])),
            "sequence": pa.array(sequences[starts]),
            "first": pa.array(numbers[starts], mask=lacks),
            "last": pa.array(numbers[ends - 1], mask=lacks),
            "records": pa.array(ends - starts),
        }
    ).cast(RUNS)


def merge_runs(runs: pa.Table) -> pa.Table:
    """Merge runs that continue the one before of their publisher."""
    rows: list[dict[str, Any]] = []
    open_runs: dict[tuple[str, bool], dict[str, Any]] = {}
    for row in runs.sort_by("sequence").to_pylist():
        key = (row["publisher"], row["first"] is None)
        before = open_runs.get(key)
        if before is not None and (row["first"] is None or before["last"] == row["first"] - 1):
            before["last"] = row["last"]
            before["records"] += row["records"]
            continue
        open_runs[key] = row
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=RUNS)


class SequenceFinding(NamedTuple):
    """A row of FINDINGS without the publisher."""

    what: str
    first: int
    last: int
    sequence: int

    @property
    def records(self) -> int:
        return self.last - self.first + 1


def find_problems(runs: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return (PUBLISHERS, FINDINGS) of all runs of a log, however it was divided."""
    publishers: list[dict[str, Any]] = []
    findings: list[dict[str, Any]] = []
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in runs.sort_by("sequence").to_pylist():
        by_name.setdefault(row["publisher"], []).append(row)
    for name, publisher_runs in sorted(by_name.items()):
        numbered = [row for row in publisher_runs if row["first"] is not None]
        sums = dict.fromkeys(("missing", "repeated", "out_of_order"), 0)
        for finding in (*_find_late(numbered), *_find_between(numbered)):
            findings.append({"publisher": name, "records": finding.records, **finding._asdict()})
            sums[finding.what] += finding.records
        publishers.append(
            {
                "publisher": name,
                "records": sum(row["records"] for row in publisher_runs),
                "unnumbered": sum(row["records"] for row in publisher_runs if row["first"] is None),
                "first": min((row["first"] for row in numbered), default=None),
                "last": max((row["last"] for row in numbered), default=None),
                **sums,
            }
        )
    return (
        pa.Table.from_pylist(publishers, schema=PUBLISHERS),
        pa.Table.from_pylist(findings, schema=FINDINGS),
    )


def _find_late(runs: list[dict[str, Any]]) -> Iterator[SequenceFinding]:
    """Yield records whose number is lower than that of an earlier record."""
    highest = 0
    for row in runs:
        if row["first"] <= highest:
            yield SequenceFinding("out_of_order", row["first"], min(row["last"], highest), row["sequence"])
        highest = max(highest, row["last"])


def _find_between(runs: list[dict[str, Any]]) -> Iterator[SequenceFinding]:
    """Yield numbers without a record, and numbers with several."""
    highest: int | None = None
    for row in sorted(runs, key=lambda one: (one["first"], one["sequence"])):
        first, last = row["first"], row["last"]
        if highest is not None and first > highest + 1:
            yield SequenceFinding("missing", highest + 1, first - 1, row["sequence"])
        if highest is not None and first <= highest:
            yield SequenceFinding("repeated", first, min(last, highest), row["sequence"])
        highest = last if highest is None else max(highest, last)
