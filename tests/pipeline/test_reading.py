"""Spans of a real journal read into Arrow, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_core.errors import JournalError, OperatorError
from broker_core.journal.segment import segment_name
from pipeline.reading import Request, plan, read_span
from pipeline.schemas import COLUMNS, record_schema
from pipeline.segments import Span, durable_sequence, last_sequence
from pipeline.sources import JournalReader, JournalSource, SpanPartition
from tests.pipeline.support import (
    INSTANCE,
    NOON,
    SECOND,
    append,
    fill,
    move,
    numbered,
    numbers_of,
    opened,
    place_in,
)


def read_all(home: Path, request: Request | None = None) -> pa.Table:
    request = request or Request()
    place = place_in(home)
    batches = [batch for span in plan(place, request) for batch in read_span(place, span, request)]
    return pa.Table.from_batches(batches, schema=record_schema(request.columns))


def test_every_column_is_what_was_published(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        append(journal, [("a", b"one"), ("b", b"")], headers=[b"h", b""], number=7, publisher="p", at=NOON)
        append(journal, [("a", b"\xff\x00")], publisher="q", at=NOON + SECOND)
        epoch = journal.epoch
    rows = read_all(tmp_path).to_pylist()
    assert [row["sequence"] for row in rows] == [1, 2, 3]
    assert [row["topic"] for row in rows] == ["a", "b", "a"]
    assert [row["publisher"] for row in rows] == ["p", "p", "q"]
    assert [row["publisher_sequence"] for row in rows] == [7, 8, None]
    assert [row["header"] for row in rows] == [b"h", b"", b""]
    assert [row["body"] for row in rows] == [b"one", b"", b"\xff\x00"]
    assert {row["origin"] for row in rows} == {INSTANCE}
    assert {row["epoch"] for row in rows} == {epoch}
    assert [int(row["accepted_at"].timestamp()) for row in rows] == [NOON // SECOND] * 2 + [
        NOON // SECOND + 1
    ]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=30), data=st.data())
def test_any_interval_of_any_batches_comes_out_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    home = tmp_path_factory.mktemp("journal")
    last = fill(home, sizes)
    first = data.draw(st.integers(1, last))
    stop = data.draw(st.integers(first, last))
    table = read_all(home, Request(start=first, end=stop))
    assert table.column("sequence").to_pylist() == list(range(first, stop + 1))
    assert table.column("body").to_pylist() == [body for _, body in numbered(stop - first + 1, first)]


def test_segments_compressed_archived_and_both_read_the_same(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 40)
    before = read_all(tmp_path)
    assert move(tmp_path, "compress", slice(0, 2)) == 2
    assert move(tmp_path, "archive", slice(1, 3)) == 2
    assert read_all(tmp_path).equals(before)
    assert before.num_rows == last


def test_part_of_a_compressed_segment_is_found_by_its_sequence(tmp_path: Path) -> None:
    fill(tmp_path, [50] * 40)
    move(tmp_path, "compress")
    assert read_all(tmp_path, Request(start=333, end=777)).column("sequence").to_pylist() == list(
        range(333, 778)
    )


def test_topics_by_pattern_and_times(tmp_path: Path) -> None:
    fill(tmp_path, [30] * 10)
    found = read_all(
        tmp_path, Request(topics=("t.1", "nothing.>"), start_at=NOON + 2 * SECOND, end_at=NOON + 3 * SECOND)
    )
    assert set(found.column("topic").to_pylist()) == {"t.1"}
    assert found.column("sequence").to_pylist() == [n for n in range(61, 121) if n % 3 == 1]


def test_segments_without_the_topic_or_the_time_are_not_opened(tmp_path: Path) -> None:
    fill(tmp_path, [50] * 40)
    place = place_in(tmp_path)
    everything = plan(place, Request())
    assert len(plan(place, Request(topics=("other",)))) < len(everything)
    assert len(plan(place, Request(start_at=NOON + 30 * SECOND))) < len(everything)


def test_records_behind_the_durable_frontier_are_not_read(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        append(journal, numbered(10))
        append(journal, numbered(10, 11), sync=False)
        assert durable_sequence(place_in(tmp_path)) == 10
        assert read_all(tmp_path).num_rows == 10
        assert read_all(tmp_path, Request(durable=20)).num_rows == 20


def test_without_a_frontier_file_the_log_ends_before_its_torn_tail(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 12)
    place = place_in(tmp_path)
    (place.directory / f"{INSTANCE}.durable").unlink()
    assert durable_sequence(place) == last
    newest = max(place.directory.glob("*.journal"))
    newest.write_bytes(newest.read_bytes().rstrip(b"\0")[:-20])
    assert last_sequence(place) == last - 50
    assert read_all(tmp_path).num_rows == last - 50


def test_a_span_that_is_short_raises_and_names_the_interval(tmp_path: Path) -> None:
    last = fill(tmp_path, [10] * 3)
    with pytest.raises(JournalError) as caught:
        read_all(tmp_path, Request(durable=last + 5))
    assert caught.value.code == "journal_short"
    assert (caught.value.details["first"], caught.value.details["last"]) == (last + 1, last + 5)


def damage(home: Path, segment: int, position: int) -> None:
    path = place_in(home).directory / f"{segment_name(INSTANCE, segment)}"
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def test_a_flipped_byte_raises_and_can_be_skipped(tmp_path: Path) -> None:
    last = fill(tmp_path, [10] * 5)
    damage(tmp_path, 1, 4096 + 200)
    with pytest.raises(JournalError) as caught:
        read_all(tmp_path)
    assert caught.value.code == "journal_damaged"
    kept = read_all(tmp_path, Request(skip_gaps=True)).column("sequence").to_pylist()
    assert kept == list(range(11, last + 1))


def test_a_start_that_retention_removed_raises_bookmark_gone(tmp_path: Path) -> None:
    fill(tmp_path, [50] * 40)
    place = place_in(tmp_path)
    oldest = min(place.directory.glob("*.journal"))
    oldest.unlink()
    with pytest.raises(JournalError) as caught:
        plan(place, Request(start=1))
    assert caught.value.code == "bookmark_gone"
    assert read_all(tmp_path).column("sequence")[0].as_py() == caught.value.details["first"]


def test_a_segment_that_vanished_after_planning_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.segments._PAUSE_SECONDS", 0)
    fill(tmp_path, [10])
    with pytest.raises(JournalError, match="segment_missing"):
        list(read_span(place_in(tmp_path), Span(99, 99, 100), Request()))


def test_a_segment_moved_between_plan_and_read_is_found(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 40)
    place = place_in(tmp_path)
    spans = plan(place, Request())
    move(tmp_path, "archive")
    move(tmp_path, "compress", slice(0, 2))
    assert numbers_of(b for span in spans for b in read_span(place, span, Request())) == list(
        range(1, last + 1)
    )


def test_an_empty_or_absent_journal_has_nothing_to_read(tmp_path: Path) -> None:
    assert plan(place_in(tmp_path), Request()) == []
    with opened(tmp_path):
        pass
    assert read_all(tmp_path).num_rows == 0


def test_batches_of_one_are_gathered_into_one_arrow_batch(tmp_path: Path) -> None:
    fill(tmp_path, [1] * 60)
    place = place_in(tmp_path)
    assert [[b.num_rows for b in read_span(place, s, Request())] for s in plan(place, Request())] == [[60]]


def test_foreign_files_in_the_directory_are_ignored(tmp_path: Path) -> None:
    last = fill(tmp_path, [10])
    directory = place_in(tmp_path).directory
    for name in (
        f"other.{7:020d}.journal",
        f"{INSTANCE}.7.journal",
        f"{INSTANCE}.{7:020d}.journal.prepared",
        "notes",
    ):
        (directory / name).write_bytes(b"")
    assert read_all(tmp_path).num_rows == last


@pytest.mark.parametrize("columns", [("nothing",), ("topic", "topic")])
def test_columns_that_cannot_be_read_are_named(columns: tuple[str, ...]) -> None:
    with pytest.raises(OperatorError, match="bad_columns"):
        record_schema(columns)


def test_a_request_survives_its_way_as_an_option() -> None:
    request = Request(columns=("body",), topics=("~a,b", "c.>"), start=3, end_at=9, skip_gaps=True)
    assert Request.from_json(request.to_json()) == request


def test_the_reader_pickles_and_answers_a_call_without_partitions(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 12)
    reader: JournalReader = pickle.loads(pickle.dumps(JournalReader(place_in(tmp_path), Request())))
    partitions = reader.partitions()
    assert all(isinstance(partition, SpanPartition) for partition in partitions)
    assert sum(batch.num_rows for partition in partitions for batch in reader.read(partition)) == last
    assert list(reader.read(None)) == []


def test_every_column_has_a_spark_type() -> None:
    assert JournalSource.name() == "sluice_journal"
    assert np.all([name in COLUMNS for name in record_schema().names])
