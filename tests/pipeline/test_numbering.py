"""Runs of publishers' sequences against a count one by one."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.transforms.publisher_sequences import RUNS, find_problems, merge_runs, sequence_runs
from sluice_spark.columns import record_schema

RECORD = st.tuples(st.sampled_from(["a", "b"]), st.one_of(st.none(), st.integers(1, 12)))


def batch_of(records: list[tuple[str, int | None]], first: int) -> pa.RecordBatch:
    rows = [
        {"sequence": first + n, "publisher": name, "publisher_sequence": number}
        for n, (name, number) in enumerate(records)
    ]
    schema = record_schema(("sequence", "publisher", "publisher_sequence"))
    return pa.RecordBatch.from_pylist(rows, schema=schema)


@given(st.lists(RECORD, max_size=40), st.integers(1, 7))
def test_runs_say_what_counting_says_wherever_the_log_is_cut(
    records: list[tuple[str, int | None]], portion: int
) -> None:
    parts = [
        sequence_runs(batch_of(records[n : n + portion], n + 1)) for n in range(0, len(records), portion)
    ]
    runs = merge_runs(pa.concat_tables([RUNS.empty_table(), *parts]))
    publishers, findings = find_problems(runs)
    told = {row["publisher"]: row for row in publishers.to_pylist()}
    for name in {name for name, _ in records}:
        numbers = [number for publisher, number in records if publisher == name and number is not None]
        mine = told[name]
        assert mine["records"] == sum(publisher == name for publisher, _ in records)
        assert mine["unnumbered"] == mine["records"] - len(numbers)
        assert mine["missing"] == (max(numbers) - min(numbers) + 1 - len(set(numbers)) if numbers else 0)
        assert mine["repeated"] == sum(count - 1 for count in Counter(numbers).values())
        late = sum(number <= max(numbers[:place], default=0) for place, number in enumerate(numbers))
        assert mine["out_of_order"] == late
        for what in ("missing", "repeated", "out_of_order"):
            found = [r for r in findings.to_pylist() if r["publisher"] == name and r["what"] == what]
            assert sum(row["records"] for row in found) == mine[what]


def test_a_publisher_that_numbers_well_is_one_run_over_all_spans() -> None:
    parts = [sequence_runs(batch_of([("a", n)], n)) for n in range(1, 50)]
    assert merge_runs(pa.concat_tables(parts)).to_pylist() == [
        {"publisher": "a", "sequence": 1, "first": 1, "last": 49, "records": 49}
    ]
