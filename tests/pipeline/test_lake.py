"""Files of the lake: their content, and that no run writes a record twice, whatever happened to the previous
run.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from broker_core.errors import OperatorError, SluiceError
from broker_core.journal.appender import JournalOptions
from broker_core.journal.frontier_file import KnownLog
from broker_core.journal.journal import Journal
from pipeline.config import JobSettings, settings_from
from pipeline.jobs import Reporter, lake, lake_check
from pipeline.lake_files import file_metadata, lock_lake, write_parquet
from pipeline.manifest import read_manifest
from pipeline.transforms.lake import file_name, log_tag, missing_intervals, parse_file_name, sorted_parts
from sluice_spark.columns import COLUMNS
from sluice_spark.log import LogSnapshot, examine_log
from sluice_spark.segments import SegmentSpan
from tests.pipeline.support import (
    NOON,
    SECOND,
    SMALL,
    FakeReporter,
    append,
    fill,
    identify,
    journal_location,
    numbered_messages,
    open_journal,
    settings_in,
)

HOUR = 3_600 * SECOND


def arguments(**given: object) -> argparse.Namespace:
    nothing = {
        "start": None,
        "end": None,
        "durable": None,
        "skip_gaps": False,
        "delta": False,
        "typed": False,
        "evolve": False,
        "compact": False,
    }
    return argparse.Namespace(**nothing | given)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the workers' part of the job in this process, without Spark."""

    def write(
        settings: JobSettings, log: LogSnapshot, spans: list[SegmentSpan], skip_gaps: bool, reporter: Reporter
    ) -> list[dict[str, object]]:
        rows = [
            {"error": None} | row
            for span in spans
            for row in lake.try_write_span(log.location, settings.records, span, skip_gaps)
        ]
        lake.raise_first(rows)
        return rows

    monkeypatch.setattr(lake, "write_spans", write)
    monkeypatch.setattr(lake, "check_machine", lambda _: None)


pytestmark = pytest.mark.usefixtures("here")


def run_here(home: Path, **given: object) -> dict[str, Any]:
    """Run the whole job; return its result."""
    return lake.run(settings_in(home), arguments(**given), FakeReporter())


def files_of(home: Path) -> list[str]:
    records = settings_in(home).records
    return sorted(str(path.relative_to(records)) for path in records.glob("day=*/*.parquet"))


def tag(home: Path) -> str:
    """Return the log tag that ends the names of this log's files."""
    return log_tag(examine_log(journal_location(home)).location.log)


def lake_of(home: Path) -> pa.Table:
    return ds.dataset(settings_in(home).records, partitioning="hive", exclude_invalid_files=False).to_table()


def test_files_are_sorted_by_topic_and_bookmark_and_named_by_their_interval(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 12)
    run_here(tmp_path)
    files = files_of(tmp_path)
    assert {name.split("/")[0] for name in files} == {"day=2026-11-21"}
    for name in files:
        table = pq.ParquetFile(settings_in(tmp_path).records / name).read()
        assert dict(zip(table.schema.names, table.schema.types, strict=True)) == COLUMNS
        keys = list(zip(table["topic"].to_pylist(), table["sequence"].to_pylist(), strict=True))
        assert keys == sorted(keys)
        found = parse_file_name(Path(name).name, "sluice-1")
        assert found == (min(key[1] for key in keys), max(key[1] for key in keys), tag(tmp_path))
    table = lake_of(tmp_path)
    assert sorted(table["sequence"].to_pylist()) == list(range(1, last + 1))
    assert (
        dict(zip(table["sequence"].to_pylist(), table["body"].to_pylist(), strict=True))[77] == b'{"n": 77}'
    )


@pytest.mark.parametrize("small", [2, 1 << 16])
@given(
    records=st.lists(
        st.tuples(st.sampled_from(["", "a", "a.b", "b", "é", "z" * 300]), st.text(max_size=2)),
        min_size=1,
        max_size=60,
    ),
    rows=st.integers(1, 20),
)
def test_records_are_put_in_order_as_arrow_itself_does(
    small: int, records: list[tuple[str, str]], rows: int
) -> None:
    topics, publishers = map(list, zip(*records, strict=True))
    table = pa.table(
        {
            "sequence": range(7, 7 + len(records)),
            "topic": topics,
            "publisher": publishers,
            "body": [f"{n}".encode() for n in range(len(records))],
        }
    )
    chunked = pa.concat_tables([table.slice(0, len(records) // 2), table.slice(len(records) // 2)])
    with mock.patch("pipeline.transforms.lake.MAX_SMALL", small):
        parts = list(sorted_parts({name: chunked.column(name) for name in chunked.schema.names}, rows))
    whole = pa.concat_tables([part.cast(table.schema) for part in parts])
    assert whole.equals(table.sort_by([("topic", "ascending"), ("sequence", "ascending")]))
    for part in parts:
        assert part.num_rows <= rows
        (topic,) = part.column("topic").chunks
        assert len(topic.dictionary) == len(set(topic.to_pylist())), (
            "the dictionary has no topic of another row group"
        )


def test_midnight_parts_the_files(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        append(journal, numbered_messages(5), at=NOON + 12 * HOUR - 1)
        append(journal, numbered_messages(5, 6), at=NOON + 12 * HOUR)
    run_here(tmp_path)
    assert files_of(tmp_path) == [
        f"day=2026-11-21/{file_name('sluice-1', 1, 5, tag(tmp_path))}",
        f"day=2026-11-22/{file_name('sluice-1', 6, 10, tag(tmp_path))}",
    ]


def test_a_second_run_writes_only_what_is_new(tmp_path: Path) -> None:
    first = fill(tmp_path, [50] * 12)
    run_here(tmp_path)
    before = files_of(tmp_path)
    assert run_here(tmp_path)["files"] == 0
    last = fill(tmp_path, [7, 8])
    assert last == first + 15
    assert run_here(tmp_path)["records"] == 15
    assert set(files_of(tmp_path)) - set(before) == {
        f"day=2026-11-21/{file_name('sluice-1', first + 1, last, tag(tmp_path))}"
    }
    assert sorted(lake_of(tmp_path)["sequence"].to_pylist()) == list(range(1, last + 1))


def test_after_a_killed_run_the_rest_is_written_and_nothing_twice(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 40)
    run_here(tmp_path)
    for name in files_of(tmp_path)[1::2]:
        (settings_in(tmp_path).records / name).unlink()
    run_here(tmp_path)
    assert sorted(lake_of(tmp_path)["sequence"].to_pylist()) == list(range(1, last + 1))


def test_half_written_files_are_cleared_and_one_job_writes_at_a_time(tmp_path: Path) -> None:
    directory = tmp_path / "records"
    left = directory / "day=2026-11-21" / ".tmp-dead"
    left.parent.mkdir(parents=True)
    left.touch()
    with lock_lake(directory):
        assert not left.exists()
        with pytest.raises(OperatorError, match="lake_busy"), lock_lake(directory):
            pass


def test_a_full_file_ends_and_the_next_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "MAX_FILE_BYTES", 1)
    monkeypatch.setattr("sluice_spark.arrow_reader.GATHER_RECORDS", 20)
    last = fill(tmp_path, [20] * 5)
    assert run_here(tmp_path)["files"] == 5
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
    (lost,) = run_here(tmp_path, skip_gaps=True)["gaps"]
    assert lost == {"first": 1, "last": 10, "why": "given up"}
    assert sorted(lake_of(tmp_path)["sequence"].to_pylist()) == list(range(11, last + 1))
    again = run_here(tmp_path)
    assert (again["files"], again["gaps"]) == (0, [lost])
    assert lake_of(tmp_path).num_rows == last - 10


def remove(home: Path, segments: int) -> int:
    """Remove the oldest segments from the broker's journal; return the last removed sequence."""
    with open_journal(home) as journal:
        return journal.remove([info.name for info in journal.segments()[:segments]], NOON).last_sequence


def test_a_fresh_lake_states_what_was_removed_as_an_old_one_does(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 40)
    gone = remove(tmp_path, 1)
    result = run_here(tmp_path)
    said = [{"first": 1, "last": gone, "why": "removed", "removed_at": "2026-11-21T12:00:00Z"}]
    assert (result["first"], result["records"], result["gaps"]) == (gone + 1, last - gone, said)
    again = run_here(tmp_path)
    assert (again["records"], again["gaps"]) == (0, said)
    manifest = read_manifest(settings_in(tmp_path).records, "sluice-1")
    assert manifest is not None
    assert (manifest.gaps, manifest.first, manifest.last) == (said, gone + 1, last)


def test_what_retention_took_from_a_lake_that_followed_the_log_is_an_error_until_it_is_accepted(
    tmp_path: Path,
) -> None:
    last = fill(tmp_path, [50] * 40)
    run_here(tmp_path, end=70)
    gone = remove(tmp_path, 2)
    with pytest.raises(SluiceError, match=r"bookmark_gone: Records 71 to .* were removed 2026-11-21"):
        run_here(tmp_path)
    result = run_here(tmp_path, skip_gaps=True)
    assert [(gap["first"], gap["last"], gap["why"]) for gap in result["gaps"]] == [(71, gone, "removed")]
    assert result["records"] == last - gone
    again = run_here(tmp_path)
    assert [(gap["first"], gap["last"]) for gap in again["gaps"]] == [(71, gone)]


def test_records_that_nobody_removed_are_missing_for_a_fresh_lake_too(tmp_path: Path) -> None:
    fill(tmp_path, [50] * 40)
    min(settings_in(tmp_path).log.directory.glob("*.journal")).unlink()
    with pytest.raises(SluiceError, match="are missing, and there is no record of a removal"):
        run_here(tmp_path)
    assert not list(settings_in(tmp_path).records.glob("day=*"))


def test_another_log_of_the_same_name_is_never_taken_for_this_one(tmp_path: Path) -> None:
    fill(tmp_path, [50] * 12)
    mine = identify(tmp_path, UUID("12345678-0000-4000-8000-000000000001"))
    assert run_here(tmp_path)["log"] == mine
    assert all(name.endswith(".12345678.parquet") for name in files_of(tmp_path))
    other = tmp_path / "other"
    fill(other, [50] * 12)
    identify(other, UUID("87654321-0000-4000-8000-000000000001"))
    settings = replace(settings_in(other), lake=settings_in(tmp_path).lake)
    before = files_of(tmp_path)
    with pytest.raises(SluiceError, match="other_log: There are two logs of the name sluice-1"):
        lake.run(settings, arguments(), FakeReporter())
    (settings.records / "_manifest" / "sluice-1.json").unlink()
    with pytest.raises(SluiceError, match="other_log"):
        lake.run(settings, arguments(), FakeReporter())
    assert files_of(tmp_path) == before


def test_a_log_that_holds_nothing_yet_has_nothing_to_refuse(tmp_path: Path) -> None:
    with open_journal(tmp_path):
        pass
    assert run_here(tmp_path)["records"] == 0
    fill(tmp_path, [10])
    assert run_here(tmp_path)["records"] == 10


def sequences(records: Path, version: int | None = None) -> list[int]:
    """Return the sequences that a reader of the Delta table sees."""
    table = DeltaTable(str(records), version=version).to_pyarrow_table(columns=["sequence"])
    return sorted(table.column("sequence").to_pylist())


def test_the_lake_as_a_delta_table_has_each_record_once_whatever_run_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = settings_in(tmp_path).records
    last = fill(tmp_path, [50] * 10)
    first = run_here(tmp_path, delta=True)["delta_version"]
    assert sequences(records) == list(range(1, last + 1))
    assert run_here(tmp_path)["delta_version"] == first
    with open_journal(tmp_path) as log:
        append(log, numbered_messages(20, last + 1), at=NOON + 24 * HOUR)
    # A run killed before the commit leaves files that are not in the table.
    with monkeypatch.context() as killed:
        killed.setattr(lake, "update_delta", lambda *_: None)
        run_here(tmp_path)
    assert sequences(records) == list(range(1, last + 1))
    assert run_here(tmp_path)["delta_version"] > first
    table = DeltaTable(str(records))
    assert sequences(records) == list(range(1, last + 21))
    told = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert (sum(row["num_records"] for row in told), max(row["max.sequence"] for row in told)) == (
        last + 20,
        last + 20,
    )
    assert sequences(records, first) == list(range(1, last + 1))
    path = records / max(files_of(tmp_path))
    path.unlink()
    run_here(tmp_path)
    assert sequences(records) == list(range(1, last + 21))
    assert lake_of(tmp_path).num_rows == last + 20


def check(home: Path, **given: object) -> dict[str, Any]:
    settings = settings_in(home)
    nothing = {"start": None, "end": None, "quick": False}
    return lake_check.run(settings, argparse.Namespace(**nothing | given), FakeReporter())


def test_the_check_says_how_far_the_lake_has_everything(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 40)
    run_here(tmp_path, end=433)
    assert (check(tmp_path)["through"], check(tmp_path)["records"]) == (433, 433)
    gone = remove(tmp_path, 1)
    run_here(tmp_path)
    told = check(tmp_path)
    assert (told["first"], told["through"], told["missing"]) == (gone + 1, last, [])
    middle = settings_in(tmp_path).records / files_of(tmp_path)[2]
    found = parse_file_name(middle.name, "sluice-1")
    assert found is not None
    parquet = pq.ParquetFile(middle)
    content, facts = parquet.read(), file_metadata(parquet)
    middle.unlink()
    assert check(tmp_path, quick=True)["through"] == found.first - 1
    changed = content.set_column(8, "body", pa.array([b"x"] * content.num_rows))
    write_parquet(changed, middle, [], facts)
    check(tmp_path, quick=True)
    with pytest.raises(SluiceError, match=r"lake_damaged.*checksum of its records is wrong"):
        check(tmp_path)
    middle.write_bytes(b"PAR1")
    with pytest.raises(SluiceError, match="lake_damaged"):
        check(tmp_path, quick=True)


def test_two_files_with_the_same_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="lake_overlap"):
        missing_intervals([(1, 10), (10, 20)], 1, 20)


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
    found = missing_intervals(covered, first, last)
    assert {n for a, b in found for n in range(a, b + 1)} == wanted
    assert found == sorted(found)


@pytest.mark.parametrize(
    "name",
    [
        "sluice-1.1-2.parquet",
        f"sluice-1.{1:020d}-{2:020d}.parquet",
        f"sluice-1.{1:020d}-{2:020d}..parquet",
        "other.x",
        f"sluice-10.{1:020d}-{2:020d}.parquet",
        ".tmp-1",
    ],
)
def test_files_of_others_are_no_intervals(name: str) -> None:
    assert parse_file_name(name, "sluice-1") is None


def test_a_failure_of_the_journal_comes_back_as_itself(tmp_path: Path) -> None:
    last = fill(tmp_path, [10])
    settings = settings_in(tmp_path)
    rows = lake.try_write_span(settings.log, settings.records, SegmentSpan(1, 1, last + 1), False)
    with pytest.raises(OperatorError, match="journal_short"):
        lake.raise_first([{"error": None} | row for row in rows])


def test_lake_of_a_group_is_one_whichever_members_journal_a_run_reads(tmp_path: Path) -> None:
    """Segments of the members end at different records; log and batches are equal."""

    def run_on(member: str, shared: str) -> dict[str, Any]:
        # Equal to --journal, --archive and --lake: the member's mounted directories, and the group's lake.
        given = settings_from(
            {},
            home=tmp_path,
            instance="sluice-1",
            journal=tmp_path / member / "journal",
            archive=tmp_path / member / "archive",
            lake=tmp_path / shared,
        )
        return lake.run(given, arguments(), FakeReporter())

    def records(shared: str) -> list[dict[str, Any]]:
        found = ds.dataset(tmp_path / shared / "records", partitioning="hive", exclude_invalid_files=False)
        return sorted(found.to_table().to_pylist(), key=itemgetter("sequence"))

    def member(name: str, options: JournalOptions, of: Journal | None = None) -> Journal:
        known = None if of is None else KnownLog(of.identity, 0)
        home = tmp_path / name
        return Journal.open(home / "journal", "sluice-1", home / "archive", options, known=known)

    def more(batches: int) -> int:
        """Apply equal batches at both members."""
        with closing(member("a", SMALL)) as a, closing(member("b", larger, a)) as b:
            for number in range(batches):
                same = append(a, numbered_messages(50, a.next_sequence), at=NOON + number * SECOND)
                b.write([same])
                b.sync()
            for journal in (a, b):
                journal.finish_sealed()
            return a.next_sequence - 1

    larger = SMALL._replace(segment_size=40 * 1024)
    more(40)
    assert run_on("a", "one")["gaps"] == []
    last = more(40)
    segments = [{path.name for path in (tmp_path / one / "journal").glob("*.journal")} for one in "ab"]
    assert len(segments[0]) > len(segments[1]) > 1 and segments[1] - segments[0]
    assert run_on("b", "one")["records"] == last // 2
    assert run_on("a", "one")["files"] == run_on("b", "one")["files"] == 0
    assert run_on("b", "other")["records"] == last
    found = records("one")
    assert [one["sequence"] for one in found] == list(range(1, last + 1))
    assert found == records("other")
