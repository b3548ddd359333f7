"""The lake's files: what is in them, and that no run writes a record twice, whatever happened to the one before."""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.errors import OperatorError, SluiceError
from pipeline.jobs import lake
from pipeline.lakefiles import one_writer
from pipeline.segments import Span
from pipeline.transforms.lake import file_name, interval_of, missing
from tests.pipeline.support import NOON, SECOND, append, fill, numbered, opened, settings_in

HOUR = 3_600 * SECOND


def arguments(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"start": None, "end": None, "durable": None, "skip_gaps": False} | given)


def run_here(home: Path, limit: int | None = None, **given: object) -> list[str]:
    """The job's plan and its workers' part, in this process; returns the files written."""
    settings = settings_in(home)
    rows = []
    for span in lake.plan_lake(settings, arguments(**given))[:limit]:
        rows += lake.written_or_error(settings.log, settings.records, span, bool(given.get("skip_gaps")))
    lake.raise_first([{"error": None} | row for row in rows])
    return [row["file"] for row in rows]


def lake_of(home: Path) -> pa.Table:
    return ds.dataset(settings_in(home).records, partitioning="hive", exclude_invalid_files=False).to_table()


def test_files_are_sorted_by_topic_and_bookmark_and_named_by_their_interval(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 12)
    files = run_here(tmp_path)
    assert {name.split("/")[0] for name in files} == {"day=2026-11-21"}
    for name in files:
        table = pq.ParquetFile(settings_in(tmp_path).records / name).read()
        keys = list(zip(table["topic"].to_pylist(), table["sequence"].to_pylist(), strict=True))
        assert keys == sorted(keys)
        interval = interval_of(Path(name).name, "sluice-1")
        assert interval == (min(key[1] for key in keys), max(key[1] for key in keys))
    table = lake_of(tmp_path)
    assert sorted(table["sequence"].to_pylist()) == list(range(1, last + 1))
    assert (
        dict(zip(table["sequence"].to_pylist(), table["body"].to_pylist(), strict=True))[77] == b'{"n": 77}'
    )


def test_midnight_parts_the_files(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        append(journal, numbered(5), at=NOON + 12 * HOUR - 1)
        append(journal, numbered(5, 6), at=NOON + 12 * HOUR)
    assert run_here(tmp_path) == [
        f"day=2026-11-21/{file_name('sluice-1', 1, 5)}",
        f"day=2026-11-22/{file_name('sluice-1', 6, 10)}",
    ]


def test_a_second_run_writes_only_what_is_new(tmp_path: Path) -> None:
    first = fill(tmp_path, [50] * 12)
    run_here(tmp_path)
    assert run_here(tmp_path) == []
    last = fill(tmp_path, [7, 8])
    assert last == first + 15
    assert run_here(tmp_path) == [f"day=2026-11-21/{file_name('sluice-1', first + 1, last)}"]
    assert sorted(lake_of(tmp_path)["sequence"].to_pylist()) == list(range(1, last + 1))


def test_after_a_run_that_was_killed_the_rest_is_written_and_nothing_twice(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 40)
    done = run_here(tmp_path)
    for name in done[1::2]:
        (settings_in(tmp_path).records / name).unlink()
    with one_writer(settings_in(tmp_path).records):
        run_here(tmp_path)
    assert sorted(lake_of(tmp_path)["sequence"].to_pylist()) == list(range(1, last + 1))


def test_half_written_files_are_cleared_and_one_job_writes_at_a_time(tmp_path: Path) -> None:
    directory = tmp_path / "records"
    left = directory / "day=2026-11-21" / ".tmp-dead"
    left.parent.mkdir(parents=True)
    left.touch()
    with one_writer(directory):
        assert not left.exists()
        with pytest.raises(OperatorError, match="lake_busy"), one_writer(directory):
            pass


def test_a_full_file_ends_and_the_next_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "MAX_FILE_BYTES", 1)
    monkeypatch.setattr("pipeline.reading.GATHER_RECORDS", 20)
    last = fill(tmp_path, [20] * 5)
    assert len(run_here(tmp_path)) == 5
    assert sorted(lake_of(tmp_path)["sequence"].to_pylist()) == list(range(1, last + 1))


def test_damage_fails_the_run_until_it_is_skipped_and_then_stays_given_up(tmp_path: Path) -> None:
    last = fill(tmp_path, [10] * 5)
    settings = settings_in(tmp_path)
    path = settings.log.directory / "sluice-1.00000000000000000001.journal"
    content = bytearray(path.read_bytes())
    content[4096 + 200] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(SluiceError) as caught:
        run_here(tmp_path)
    assert caught.value.code == "journal_damaged"
    spans = lake.plan_lake(settings, arguments(skip_gaps=True))
    run_here(tmp_path, skip_gaps=True)
    assert sorted(lake_of(tmp_path)["sequence"].to_pylist()) == list(range(11, last + 1))
    assert lake.accept_gaps(settings, spans) == [(1, 10)]
    assert run_here(tmp_path) == []
    assert lake_of(tmp_path).num_rows == last - 10


def test_records_that_left_the_journal_unread_are_reported(tmp_path: Path) -> None:
    fill(tmp_path, [50] * 40)
    settings = settings_in(tmp_path)
    first, second = sorted(settings.log.directory.glob("*.journal"))[:2]
    run_here(tmp_path, limit=1)
    first.unlink()
    second.unlink()
    with pytest.raises(SluiceError, match="bookmark_gone"):
        run_here(tmp_path)


def test_two_files_with_the_same_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="lake_overlap"):
        missing([(1, 10), (10, 20)], 1, 20)


@given(
    cuts=st.lists(st.integers(1, 200), unique=True, max_size=20),
    held=st.lists(st.booleans(), min_size=21, max_size=21),
    first=st.integers(1, 200),
    length=st.integers(0, 100),
)
def test_what_is_missing_is_exactly_what_no_file_covers(
    cuts: list[int], held: list[bool], first: int, length: int
) -> None:
    edges = sorted({1, 201, *cuts})
    covered = [(a, b - 1) for (a, b), keep in zip(pairwise(edges), held, strict=False) if keep]
    last = first + length
    wanted = set(range(first, last + 1)) - {n for a, b in covered for n in range(a, b + 1)}
    found = missing(covered, first, last)
    assert {n for a, b in found for n in range(a, b + 1)} == wanted
    assert found == sorted(found)


@pytest.mark.parametrize(
    "name", ["sluice-1.1-2.parquet", "other.x", f"sluice-10.{1:020d}-{2:020d}.parquet", ".tmp-1"]
)
def test_files_of_others_are_no_intervals(name: str) -> None:
    assert interval_of(name, "sluice-1") is None


def test_a_failure_of_the_journal_comes_back_as_itself(tmp_path: Path) -> None:
    last = fill(tmp_path, [10])
    settings = settings_in(tmp_path)
    rows = lake.written_or_error(settings.log, settings.records, Span(1, 1, last + 1), False)
    with pytest.raises(OperatorError, match="journal_short"):
        lake.raise_first([{"error": None} | row for row in rows])
