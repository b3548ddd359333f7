"""Typed columns of JSON bodies, and compaction of small files: no record is lost or doubled, despite
interruptions.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from broker_core.errors import OperatorError
from pipeline import compaction, delta_table
from pipeline.manifest import read_manifest
from pipeline.transforms.lake import parse_file_name
from pipeline.transforms.typed_columns import PREFIX, UNFIT, infer_fields, typed_columns
from tests.pipeline.support import (
    INSTANCE,
    NOON,
    SECOND,
    append,
    numbered_messages,
    open_journal,
    settings_in,
)
from tests.pipeline.test_lake import here, run_here  # noqa: F401

pytestmark = pytest.mark.usefixtures("here")
PROJECT = Path(__file__).parents[2]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
OBJECTS = st.dictionaries(
    st.sampled_from(["a", "A", "topic", "unfit_json", "json_a", "a b", "ä", ""]),
    SCALARS | st.lists(SCALARS, max_size=2),
    max_size=4,
)


@given(st.lists(OBJECTS, max_size=8), st.lists(OBJECTS, max_size=8))
def test_columns_and_what_is_unfit_together_are_the_bodies(
    sample: list[dict[str, Any]], bodies: list[dict[str, Any]]
) -> None:
    fields = infer_fields(orjson.dumps(one) for one in sample)
    texts = [orjson.dumps(one) for one in bodies]
    made = typed_columns(
        pa.chunked_array([["t"] * len(bodies)], pa.string()), pa.chunked_array([texts], pa.binary()), fields
    )
    assert len({name.lower() for name in made.columns.column_names}) == len(fields) + 1
    for body, row in zip(bodies, made.columns.to_pylist(), strict=True):
        rest = json.loads(row.pop(UNFIT) or "{}")
        told = {name.removeprefix(PREFIX): value for name, value in row.items() if value is not None}
        assert not told.keys() & rest.keys()
        texts_of = {
            name: json.loads(value) if fields[name] == "json" else value for name, value in told.items()
        }
        assert texts_of | rest == {name: value for name, value in body.items() if value is not None}
    assert made.unfit == sum(len(json.loads(text or "{}")) for text in made.columns.column(UNFIT).to_pylist())


def records(home: Path) -> Any:
    return ds.dataset(str(settings_in(home).records), partitioning="hive", schema=_widest(home))


def _widest(home: Path) -> pa.Schema:
    files = settings_in(home).records.glob("day=*/*.parquet")
    return pa.unify_schemas([pq.read_schema(path).remove_metadata() for path in files])


def run_lake_job(home: Path, *bodies: bytes, topic: str = "t", at: int = NOON) -> None:
    with open_journal(home) as log:
        append(log, [(topic, body) for body in bodies], at=at)


def test_fields_are_columns_by_a_schema_that_is_kept_until_somebody_evolves_it(tmp_path: Path) -> None:
    run_lake_job(tmp_path, b'{"n": 1, "topic": "x", "to": "JFK"}', b'{"n": 2, "deep": {"a": [1]}}')
    run_lake_job(tmp_path, b'{"node": "broker"}', topic="$SLUICE.x")
    told = run_here(tmp_path, typed=True)
    assert (told["typed_columns"], told["unfit_values"], told["not_json"]) == (4, 0, 0)
    run_lake_job(
        tmp_path, b'{"n": "three", "gate": 7}', b"not JSON", b"[1]", b"\xff\xfe", b"", b'{"n": 4, "to": null}'
    )
    told = run_here(tmp_path)
    assert (told["unfit_values"], told["not_json"], told["new_fields"]) == (2, 4, ["gate"])
    run_lake_job(tmp_path, b'{"n": 5, "gate": 8}')
    assert run_here(tmp_path, evolve=True)["typed_columns"] == 5
    assert run_here(tmp_path, evolve=True)["records"] == 0
    rows = records(tmp_path).to_table().sort_by("sequence").to_pylist()
    assert [row["json_n"] for row in rows] == [1, 2, None, None, None, None, None, None, 4, 5]
    assert (rows[0]["topic"], rows[0]["json_topic"], rows[1]["json_deep"]) == ("t", "x", '{"a":[1]}')
    assert [json.loads(row[UNFIT]) for row in rows if row[UNFIT]] == [{"n": "three", "gate": 7}]
    assert rows[-1]["json_gate"] == 8
    assert [row["body"] for row in rows][4:7] == [b"not JSON", b"[1]", b"\xff\xfe"]


def test_a_schema_that_cannot_be_read_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    run_lake_job(tmp_path, b'{"n": 1}')
    run_here(tmp_path, typed=True)
    (settings_in(tmp_path).records / "_typed" / "schema.json").write_text('{"fields": {"n": "varchar"}}')
    run_lake_job(tmp_path, b'{"n": 2}')
    before = sorted(settings_in(tmp_path).records.glob("day=*/*"))
    with pytest.raises(OperatorError, match="unknown types"):
        run_here(tmp_path)
    assert sorted(settings_in(tmp_path).records.glob("day=*/*")) == before


def many_runs(home: Path, runs: int = 6, **given: object) -> int:
    last = 0
    for number in range(runs):
        last += 10
        with open_journal(home) as log:
            append(log, numbered_messages(10, last - 9), at=NOON + number * SECOND)
        run_here(home, **given)
    return last


def lake_content(home: Path) -> tuple[int, int]:
    """Return the files, and the records by file name, of one listing."""
    files = [
        parse_file_name(path.name, INSTANCE)
        for path in (settings_in(home).records / "day=2026-11-21").iterdir()
    ]
    held = sorted((one.first, one.last) for one in files if one is not None)
    numbers = [number for first, last in held for number in range(first, last + 1)]
    assert len(set(numbers)) == len(numbers)
    return len(held), len(numbers)


def test_small_files_become_one_and_readers_see_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = many_runs(tmp_path, delta=True)
    directory = settings_in(tmp_path).records
    kept = next(directory.glob("day=*/*.parquet")).open("rb")
    exchange, listings = compaction._exchange, []

    def watched(made: Path, day: Path) -> None:
        listings.append(lake_content(tmp_path))
        exchange(made, day)
        listings.append(lake_content(tmp_path))

    monkeypatch.setattr(compaction, "_exchange", watched)
    version = DeltaTable(str(directory)).version()
    told = run_here(tmp_path, compact=True)
    assert (told["files_joined"], told["files_made"], listings) == (6, 1, [(6, last), (1, last)])
    assert told["delta_version"] == version + 1
    assert DeltaTable(str(directory)).to_pyarrow_table(columns=["sequence"]).num_rows == last
    assert pq.ParquetFile(kept).read().num_rows == 10  # files that a reader has opened stay readable
    manifest = read_manifest(directory, INSTANCE)
    assert manifest is not None
    assert (manifest.files, manifest.records, manifest.last) == (1, last, last)
    assert run_here(tmp_path, compact=True)["files_joined"] == 0
    assert not list(directory.glob(".compact-*"))
    table = records(tmp_path).to_table()
    assert sorted(table.column("sequence").to_pylist()) == list(range(1, last + 1))
    assert table.column("topic").to_pylist() == sorted(table.column("topic").to_pylist())


def test_readers_of_the_delta_table_keep_what_they_had_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query listed the files before compaction and reads them after it; an older table version also
    stays readable.

    Old files are deleted later.
    """
    last = many_runs(tmp_path, delta=True)
    directory = str(settings_in(tmp_path).records)
    listed = DeltaTable(directory).to_pyarrow_dataset()
    before = DeltaTable(directory).version()
    assert run_here(tmp_path, compact=True)["files_made"] == 1
    assert listed.to_table(columns=["sequence"]).num_rows == last
    assert DeltaTable(directory, version=before).to_pyarrow_table(columns=["sequence"]).num_rows == last
    names = sorted(settings_in(tmp_path).records.glob(".versions/*/*"))
    assert len(names) == 7
    monkeypatch.setattr(delta_table, "RETENTION_S", -1)
    run_here(tmp_path)
    (kept,) = settings_in(tmp_path).records.glob(".versions/*/*")
    assert kept.samefile(next(settings_in(tmp_path).records.glob("day=*/*.parquet")))
    assert DeltaTable(directory).to_pyarrow_table(columns=["sequence"]).num_rows == last
    assert records(tmp_path).to_table().num_rows == last  # a listing has each record once


def test_a_large_file_isnt_written_again_for_each_small_one() -> None:
    def files(*sizes: int) -> list[compaction.SmallFile]:
        return [
            compaction.SmallFile(compaction.LakeFileName(n, n, "t"), Path(str(n)), size)
            for n, size in enumerate(sizes, 1)
        ]

    def shape(*sizes: int) -> list[int]:
        return [len(group) for group in compaction.plan_compaction(files(*sizes), 100)]

    assert [
        shape(90, 1),
        shape(4, 1),
        shape(4, 1, 1, 1, 1),
        shape(60, 60),
        shape(50, 50, 50, 50),
        shape(1),
    ] == [[], [], [5], [], [2, 2], []]
    apart = [one for one in files(1, 1, 1, 1) if one.file.first != 2]
    assert [[one.file.first for one in group] for group in compaction.plan_compaction(apart, 100)] == [[3, 4]]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_run_that_is_killed_while_it_joins_leaves_each_record_once(tmp_path: Path, moment: str) -> None:
    last = many_runs(tmp_path)
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from pipeline import compaction\n"
        "from tests.pipeline.test_lake import arguments\n"
        "from tests.pipeline.support import FakeReporter, settings_in\n"
        "from pipeline.jobs import lake\n"
        "exchange = compaction._exchange\n"
        "def killed(made, day):\n"
        "    if sys.argv[2] == 'after': exchange(made, day)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "compaction._exchange = killed\n"
        "lake.run(settings_in(Path(sys.argv[1])), arguments(compact=True), FakeReporter())\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path), moment]
    assert subprocess.run(words, cwd=PROJECT, check=False).returncode == -signal.SIGKILL
    assert lake_content(tmp_path) == ((6, last) if moment == "before" else (1, last))
    assert list(settings_in(tmp_path).records.glob(".compact-*"))
    run_here(tmp_path, compact=True)
    assert lake_content(tmp_path) == (1, last)
    assert not list(settings_in(tmp_path).records.glob(".compact-*"))
    manifest = read_manifest(settings_in(tmp_path).records, INSTANCE)
    assert manifest is not None
    assert (manifest.files, manifest.records) == (1, last)


def test_what_is_damaged_is_named_and_stays(tmp_path: Path) -> None:
    many_runs(tmp_path, 3)
    path = sorted(settings_in(tmp_path).records.glob("day=*/*.parquet"))[1]
    table = pq.read_table(path)
    pq.write_table(
        table.set_column(table.schema.get_field_index("body"), "body", pa.array([b"x"] * 10, pa.binary())),
        path,
    )
    with pytest.raises(OperatorError, match="checksum of its records is wrong"):
        run_here(tmp_path, compact=True)
    assert lake_content(tmp_path) == (3, 30)


def test_what_is_not_joined_stays_in_its_day(tmp_path: Path) -> None:
    many_runs(tmp_path, 4)
    day = settings_in(tmp_path).records / "day=2026-11-21"
    (day / "sluice-2.00000000000000000001-00000000000000000004.parquet").write_bytes(b"another instance's")
    run_here(tmp_path, compact=True)
    assert sorted(path.read_bytes() == b"another instance's" for path in day.iterdir()) == [False, True]


def test_typed_may_be_asked_for_when_there_is_nothing_new_and_joining_types_what_was_there(
    tmp_path: Path,
) -> None:
    run_lake_job(tmp_path, b"nothing", b"7")
    assert "typed_columns" not in run_here(tmp_path, typed=True)
    last = many_runs(tmp_path, 4)
    assert run_here(tmp_path, typed=True, delta=True)["typed_columns"] == 1
    run_here(tmp_path, compact=True)
    assert [n for n in records(tmp_path).to_table().column("json_n").to_pylist() if n is not None] != []
    table = DeltaTable(str(settings_in(tmp_path).records)).to_pyarrow_table(columns=["sequence", "json_n"])
    assert table.num_rows == last + 2
    assert sorted(n for n in table.column("json_n").to_pylist() if n is not None)[-1] == 40
