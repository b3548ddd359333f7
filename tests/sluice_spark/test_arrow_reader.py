"""Spans of a real journal read into Arrow, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_core.batch import HEADER_SIZE, Batch, build_batch
from broker_core.errors import ClientError, JournalError, OperatorError
from broker_core.journal.appender import JournalOptions
from broker_core.journal.segment import segment_name
from broker_core.journal.segment_reader import SegmentSource
from sluice_spark import arrow_reader
from sluice_spark.arrow_builder import ArrowBatchBuilder, RecordFilter, _build_entries, _find_topics
from sluice_spark.arrow_reader import ReadRequest, TopicMatcher, plan_log, plan_read, read_span, read_spans
from sluice_spark.columns import COLUMNS, record_schema
from sluice_spark.location import LogLocation
from sluice_spark.log import examine_log
from sluice_spark.partition import SpanPartition
from sluice_spark.segments import SegmentSpan, durable_sequence, last_sequence
from sluice_spark.source import JournalReader, SluiceSource
from sluice_spark.tasks import merge_spans, plan_tasks
from tests.pipeline.support import (
    INSTANCE,
    NOON,
    SECOND,
    append,
    fill,
    identify,
    journal_location,
    move,
    numbered_messages,
    numbers_of,
    open_journal,
    write_sidecar,
)


def read_all(home: Path, request: ReadRequest | None = None) -> pa.Table:
    request = request or ReadRequest()
    place = journal_location(home)
    batches = [batch for span in plan_read(place, request) for batch in read_span(place, span, request)]
    return pa.Table.from_batches(batches, schema=record_schema(request.columns))


def test_every_column_is_what_was_published(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
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
    table = read_all(home, ReadRequest(start=first, end=stop))
    assert table.column("sequence").to_pylist() == list(range(first, stop + 1))
    assert table.column("body").to_pylist() == [
        body for _, body in numbered_messages(stop - first + 1, first)
    ]


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
    assert read_all(tmp_path, ReadRequest(start=333, end=777)).column("sequence").to_pylist() == list(
        range(333, 778)
    )


def test_topics_by_pattern_and_times(tmp_path: Path) -> None:
    fill(tmp_path, [30] * 10)
    found = read_all(
        tmp_path,
        ReadRequest(topics=("t.1", "nothing.>"), start_at=NOON + 2 * SECOND, end_at=NOON + 3 * SECOND),
    )
    assert set(found.column("topic").to_pylist()) == {"t.1"}
    assert found.column("sequence").to_pylist() == [n for n in range(61, 121) if n % 3 == 1]


def test_segments_without_the_time_are_not_planned(tmp_path: Path) -> None:
    fill(tmp_path, [50] * 40)
    place = journal_location(tmp_path)
    everything = plan_read(place, ReadRequest())
    assert len(plan_read(place, ReadRequest(start_at=NOON + 30 * SECOND))) < len(everything)


def test_stretches_without_the_topic_or_the_time_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_core.journal.segment_index.ENTRY_BYTES", 1_000)
    with open_journal(tmp_path, JournalOptions(segment_size=1024 * 1024, preallocated=0)) as journal:
        for number in range(100):
            topic = "rare" if number in (40, 70) else f"often.{number % 3}"
            append(journal, [(topic, b"x" * 100)] * 10, at=NOON + number * SECOND)
    with open_journal(tmp_path):  # a sidecar is written when the log is opened behind a sealed segment
        pass
    place = journal_location(tmp_path)
    (path,) = place.directory.glob("*.journal")
    write_sidecar(path)
    read: list[SegmentSpan] = []
    real = arrow_reader.read_batches

    def counted(where: LogLocation, span: SegmentSpan, source: SegmentSource, **more: Any) -> Iterator[Batch]:
        read.append(span)
        return real(where, span, source, **more)

    monkeypatch.setattr(arrow_reader, "read_batches", counted)
    assert read_all(tmp_path, ReadRequest(topics=("rare",))).num_rows == 20
    assert sum(span.last - span.first + 1 for span in read) <= 40
    read.clear()
    hours = 3_600 * SECOND
    assert (
        read_all(tmp_path, ReadRequest(start_at=NOON + 90 * SECOND, end_at=NOON + 2 * hours)).num_rows == 100
    )
    assert sum(span.last - span.first + 1 for span in read) <= 120


def test_a_topic_among_ten_thousand_is_found_whatever_else_a_batch_holds(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        for number in range(0, 10_000, 100):
            append(journal, [(f"t.{n}", b"%d" % n) for n in range(number, number + 100)])
    found = read_all(tmp_path, ReadRequest(topics=("t.77", "t.9999", "t.12.>", "none")))
    assert found.column("body").to_pylist() == [b"77", b"9999"]
    found = read_all(tmp_path, ReadRequest(topics=("~t\\.(5|6)",)))
    assert found.column("topic").to_pylist() == ["t.5", "t.6"]


def test_a_sidecar_bounds_the_read_of_a_rare_topic(tmp_path: Path) -> None:
    """The read is planned as one small span with its worker's positions; also with another header, and by
    sidecar positions.
    """
    with open_journal(tmp_path, JournalOptions(segment_size=1024 * 1024, preallocated=0)) as journal:
        for number in range(0, 10_000, 100):
            topics = [f"t.{n}" for n in range(number, number + 99)]
            topics.append("rare" if number % 3_000 == 0 else "often")
            append(
                journal,
                [(topic, topic.encode() * 20) for topic in topics],
                headers=[b"h%d" % n for n in range(100)],
            )
    place = journal_location(tmp_path)
    for path in place.directory.glob("*.journal"):
        write_sidecar(path)
    wanted = [100, 3_100, 6_100, 9_100]
    for pattern in ("rare", "rare.>", "~^rare$"):
        request = ReadRequest(topics=(pattern, "rare"))
        spans = plan_read(place, request)
        assert sum(span.nbytes for span in spans) < 600_000
        found = read_all(tmp_path, request)
        assert found.column("sequence").to_pylist() == wanted
        assert found.column("body").to_pylist() == [b"rare" * 20] * 4
        assert found.column("header").to_pylist() == [b"h99"] * 4
    assert plan_read(place, ReadRequest(topics=("none",), end=8_000)) == []
    assert read_all(tmp_path, ReadRequest(topics=("rare",), start=3_100, end=6_099)).num_rows == 1
    often = [
        n
        for span in plan_read(place, ReadRequest(topics=("rare",)))
        for n in numbers_of(read_span(place, span, ReadRequest(topics=("often",))))
    ]
    assert len(often) == 96, "what was planned for another topic is looked for again"
    lying = [
        span._replace(
            hint=span.hint._replace(
                ranges=tuple(one._replace(offset=one.offset + 8) for one in span.hint.ranges)
            )
        )
        for span in plan_read(place, ReadRequest(topics=("rare",)))
        if span.hint is not None
    ]
    assert [
        n for span in lying for n in numbers_of(read_span(place, span, ReadRequest(topics=("rare",))))
    ] == wanted


def test_a_filter_in_the_brokers_language_over_bodies_and_topics(tmp_path: Path) -> None:
    last = fill(tmp_path, [30] * 10)
    found = read_all(
        tmp_path, ReadRequest(topics=("t.1",), filter="/n > 100 AND /n <= 130", columns=("sequence",))
    )
    assert found.column("sequence").to_pylist() == [n for n in range(101, 131) if n % 3 == 1]
    assert read_all(tmp_path, ReadRequest(filter="/n = 7")).column("body").to_pylist() == [b'{"n": 7}']
    assert read_all(tmp_path, ReadRequest(filter="/n > 0")).num_rows == last
    assert read_all(tmp_path, ReadRequest(filter="/n > 0", message_type="fix")).num_rows == 0
    with pytest.raises(ClientError, match="bad_filter"):
        ReadRequest(filter="/n >").check()


def test_large_segments_are_parted_and_small_ones_put_together(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 40)
    place = journal_location(tmp_path)
    spans = plan_read(place, ReadRequest(split_bytes=4_000))
    with open_journal(tmp_path) as journal:
        segments = len(journal.segments())
    assert all(one.last + 1 == two.first for one, two in pairwise(spans))
    assert (spans[0].first, spans[-1].last) == (1, last)
    together = merge_spans(plan_read(place, ReadRequest()), 40_000)
    assert 1 < len(together) < segments
    found = pa.Table.from_batches(
        b for part in together for b in read_spans(place, part.spans, ReadRequest())
    )
    assert found.column("sequence").to_pylist() == list(range(1, last + 1))


@pytest.mark.parametrize(
    ("wanted", "tasks"),
    [
        (ReadRequest(), 4),
        (ReadRequest(start=400, end=1_700), 4),
        (ReadRequest(start=901, end=935), 2),
        (ReadRequest(start=950, end=960), 1),
        (ReadRequest(topics=("t.1",)), 4),
        (ReadRequest(topics=("seldom",)), 3),
        (ReadRequest(topics=("nowhere",)), 0),
    ],
)
def test_what_is_little_is_shared_out_all_the_same(tmp_path: Path, wanted: ReadRequest, tasks: int) -> None:
    """One segment is divided where its sidecar permits: no task has much more than another, and no record is
    read twice.
    """
    with open_journal(tmp_path, JournalOptions(segment_size=64 * 1024 * 1024, preallocated=0)) as journal:
        for number in range(200):
            often = [(f"t.{n % 3}", b"x" * 20_000) for n in range(9)]
            append(journal, [*often, ("seldom" if number % 40 == 0 else "t.0", b"y")])
    place = journal_location(tmp_path)
    for path in place.directory.glob("*.journal"):
        write_sidecar(path)
    spans = plan_read(place, wanted)
    made = plan_tasks(place, spans, 128 * 1024 * 1024, 300_000)
    assert len(made) == tasks
    sizes = [sum(span.nbytes for span in part.spans) for part in made]
    assert 0 <= sum(span.nbytes for span in spans) - sum(sizes) <= 4_096 and max(sizes, default=0) <= 2 * min(
        sizes, default=1
    )
    found = [n for part in made for n in numbers_of(read_spans(place, part.spans, wanted))]
    assert found == read_all(tmp_path, wanted).column("sequence").to_pylist()
    assert len(plan_tasks(place, spans, 1, 300_000)) >= len(made), "never larger than asked for"


@pytest.mark.parametrize(
    "wanted",
    [{"start": 5, "end": 4}, {"start": 6}, {"end": 6}, {"start": 0}, {"start_at": 2, "end_at": 1}],
)
def test_a_range_that_is_none_is_refused(tmp_path: Path, wanted: dict[str, int]) -> None:
    fill(tmp_path, [5])
    with pytest.raises(OperatorError, match="bad_range"):
        plan_read(journal_location(tmp_path), ReadRequest(**wanted))  # type: ignore[arg-type]


def test_records_behind_the_durable_frontier_are_not_read(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        append(journal, numbered_messages(10))
        append(journal, numbered_messages(10, 11), sync=False)
        assert durable_sequence(journal_location(tmp_path)) == 10
        assert read_all(tmp_path).num_rows == 10
        assert read_all(tmp_path, ReadRequest(durable=20)).num_rows == 20


def test_without_a_frontier_file_the_log_ends_before_its_torn_tail(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 12)
    place = journal_location(tmp_path)
    (place.directory / f"{INSTANCE}.durable").unlink()
    assert durable_sequence(place) == last
    newest = max(place.directory.glob("*.journal"))
    newest.write_bytes(newest.read_bytes().rstrip(b"\0")[:-20])
    assert last_sequence(place) == last - 50
    assert read_all(tmp_path).num_rows == last - 50


def test_a_span_that_is_short_raises_and_names_the_interval(tmp_path: Path) -> None:
    last = fill(tmp_path, [10] * 3)
    with pytest.raises(JournalError) as caught:
        read_all(tmp_path, ReadRequest(durable=last + 5))
    assert caught.value.code == "journal_short"
    assert (caught.value.details["first"], caught.value.details["last"]) == (last + 1, last + 5)


def damage(home: Path, segment: int, position: int) -> None:
    path = journal_location(home).directory / f"{segment_name(INSTANCE, segment)}"
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def test_a_flipped_byte_raises_and_can_be_skipped(tmp_path: Path) -> None:
    last = fill(tmp_path, [10] * 5)
    damage(tmp_path, 1, 4096 + 200)
    with pytest.raises(JournalError) as caught:
        read_all(tmp_path)
    assert caught.value.code == "journal_damaged"
    kept = read_all(tmp_path, ReadRequest(skip_gaps=True)).column("sequence").to_pylist()
    assert kept == list(range(11, last + 1))


def test_a_start_that_retention_removed_raises_bookmark_gone(tmp_path: Path) -> None:
    fill(tmp_path, [50] * 40)
    place = journal_location(tmp_path)
    with open_journal(tmp_path) as journal:
        journal.remove([info.name for info in journal.segments()[:2]], NOON)
        oldest = journal.first_sequence
    with pytest.raises(JournalError, match="were removed 2026-11-21T12:00:00Z") as caught:
        plan_read(place, ReadRequest(start=1))
    assert caught.value.code == "bookmark_gone"
    assert (caught.value.details["first"], caught.value.details["last"]) == (1, oldest - 1)
    # The oldest record there is, is what who names no start asks for.
    assert read_all(tmp_path).column("sequence")[0].as_py() == oldest


def test_a_beginning_that_nobody_removed_raises_for_everybody(tmp_path: Path) -> None:
    fill(tmp_path, [50] * 40)
    place = journal_location(tmp_path)
    first, second, *_ = sorted(place.directory.glob("*.journal"))
    second.unlink()
    with pytest.raises(JournalError, match="are missing, and there is no record of a removal"):
        plan_read(place, ReadRequest())
    first.unlink()
    with pytest.raises(JournalError, match="are missing") as caught:
        plan_read(place, ReadRequest())
    oldest = caught.value.details["oldest"]
    assert read_all(tmp_path, ReadRequest(skip_gaps=True)).column("sequence")[0].as_py() == oldest


def test_every_order_of_archive_compress_and_remove_under_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happens between the plan and any of the reads: all records once in order, or an error with a
    name.
    """
    monkeypatch.setattr("sluice_spark.segments._RETRY_DELAY_S", 0)
    outcomes = set()
    acts = ("archive", "compress", "remove")
    for number, order in enumerate([*permutations(acts), ("archive", "compress"), ("compress", "archive")]):
        home = tmp_path / str(number)
        last = fill(home, [50] * 25)
        log = examine_log(journal_location(home))
        spans = plan_log(log, ReadRequest())
        got: list[int] = []
        try:
            for at, span in enumerate(spans):
                got += numbers_of(read_span(log.location, span, ReadRequest()))
                if at < len(order):
                    act_on(home, order[at])
            outcomes.add("whole")
        except JournalError as error:
            assert error.code == "segment_missing"
            outcomes.add(error.code)
            assert "remove" in order
        assert got == list(range(1, len(got) + 1))
        assert "remove" in order or len(got) == last
    assert outcomes == {"whole", "segment_missing"}


def act_on(home: Path, action: str) -> None:
    """Act on all sealed segments; for remove, on all but the newest."""
    if action != "remove":
        move(home, action)
        return
    with open_journal(home) as journal:
        sealed = [info.name for info in journal.segments() if info.state != "current"]
        journal.remove(sealed[:-1], NOON)


def test_a_segment_that_vanished_after_planning_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_spark.segments._RETRY_DELAY_S", 0)
    fill(tmp_path, [10])
    with pytest.raises(JournalError, match="segment_missing"):
        list(read_span(journal_location(tmp_path), SegmentSpan(99, 99, 100), ReadRequest()))


def test_a_segment_moved_between_plan_and_read_is_found(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 40)
    place = journal_location(tmp_path)
    spans = plan_read(place, ReadRequest())
    move(tmp_path, "archive")
    move(tmp_path, "compress", slice(0, 2))
    assert numbers_of(b for span in spans for b in read_span(place, span, ReadRequest())) == list(
        range(1, last + 1)
    )


def test_an_empty_journal_has_nothing_to_read_and_an_absent_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="There is no journal directory"):
        plan_read(journal_location(tmp_path), ReadRequest())
    with open_journal(tmp_path):
        pass
    assert read_all(tmp_path).num_rows == 0
    fill(tmp_path, [5])
    with pytest.raises(OperatorError, match=r"no journal of sluice-2 in .*; there is one of sluice-1"):
        plan_read(replace(journal_location(tmp_path), instance="sluice-2"), ReadRequest())
    with pytest.raises(OperatorError, match="There is no archive directory"):
        plan_read(replace(journal_location(tmp_path), archive=tmp_path / "arhcive"), ReadRequest())


def test_a_log_is_known_by_its_identity(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 40)
    mine = identify(tmp_path, UUID(int=7))
    log = examine_log(journal_location(tmp_path))
    assert log.location.log == mine
    assert numbers_of(
        read_spans(log.location, plan_read(log.location, ReadRequest()), ReadRequest())
    ) == list(range(1, last + 1))
    with pytest.raises(OperatorError, match="other_log"):
        examine_log(replace(log.location, log=str(UUID(int=8))))
    foreign = sorted(journal_location(tmp_path).directory.glob("*.journal"))[0]
    identify(tmp_path, UUID(int=9), foreign)
    with pytest.raises(JournalError, match="other_log"):
        list(read_spans(log.location, plan_read(log.location, ReadRequest()), ReadRequest()))


def test_batches_of_one_are_gathered_into_one_arrow_batch(tmp_path: Path) -> None:
    fill(tmp_path, [1] * 60)
    place = journal_location(tmp_path)
    assert [
        [b.num_rows for b in read_span(place, s, ReadRequest())] for s in plan_read(place, ReadRequest())
    ] == [[60]]


def test_foreign_files_in_the_directory_are_ignored(tmp_path: Path) -> None:
    last = fill(tmp_path, [10])
    directory = journal_location(tmp_path).directory
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
    request = ReadRequest(columns=("body",), topics=("~a,b", "c.>"), start=3, end_at=9, skip_gaps=True)
    assert ReadRequest.from_json(request.to_json()) == request


def test_the_reader_pickles_and_answers_a_call_without_partitions(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 12)
    reader: JournalReader = pickle.loads(
        pickle.dumps(JournalReader(journal_location(tmp_path), ReadRequest()))
    )
    partitions = reader.partitions()
    assert all(isinstance(partition, SpanPartition) for partition in partitions)
    assert sum(batch.num_rows for partition in partitions for batch in reader.read(partition)) == last
    assert list(reader.read(None)) == []


def test_every_column_has_a_spark_type() -> None:
    assert SluiceSource.name() == "sluice"
    assert np.all([name in COLUMNS for name in record_schema().names])


@settings(deadline=None)
@given(
    batches=st.lists(
        st.tuples(
            st.text("abcXYZ", min_size=1, max_size=8),
            st.lists(st.text("abé.", min_size=1, max_size=9), min_size=1, max_size=40),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_dictionaries_walked_side_by_side_are_those_of_each_batch(
    batches: list[tuple[str, list[str]]],
) -> None:
    made = [Batch.parse(build_batch(publisher, topics, [b""] * len(topics))) for publisher, topics in batches]
    names, bases = _build_entries([_dictionary(batch) for batch in made])
    found = [
        names.slice(base, len(batch.topics) + 1).to_pylist() for base, batch in zip(bases, made, strict=True)
    ]
    assert found == [[batch.publisher_name, *batch.topics] for batch in made]


@settings(deadline=None)
@given(
    dictionaries=st.lists(
        st.tuples(
            st.lists(
                st.sampled_from(["", "a", "\0", "\0\0b", "\x02aa", "é", "c" * 255, "d" * 256, "e" * 700]),
                min_size=1,
                max_size=300,
            ),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_dictionaries_of_any_texts_are_read_right(dictionaries: list[tuple[list[str], int]]) -> None:
    """With zeros, with lengths that brokers refuse, with 256 and more entries, and padded with zeros."""
    made = [
        len(texts).to_bytes(2, "little")
        + b"".join(len(text.encode()).to_bytes(2, "little") + text.encode() for text in texts)
        + bytes(filling)
        for texts, filling in dictionaries
    ]
    names, bases = _build_entries(made)
    assert names.to_pylist() == [text for texts, _ in dictionaries for text in texts]
    assert bases.tolist() == [
        sum(len(texts) for texts, _ in dictionaries[:n]) for n in range(len(dictionaries))
    ]


NAMES = st.sampled_from(["a", "aa", "aaa", "b", "é", "\x01b", "a.b", "\x02aa"])
TOPICS = NAMES.filter(str.isprintable)


@settings(deadline=None)
@given(
    publisher=NAMES,
    topics=st.lists(NAMES, min_size=1, max_size=12),
    wanted=st.frozensets(NAMES, min_size=1, max_size=3),
)
def test_topics_are_found_in_a_dictionary_whatever_stands_beside_them(
    publisher: str, topics: list[str], wanted: frozenset[str]
) -> None:
    """A client may have written one twice, a publisher may be called as one, and one may stand within
    another.
    """
    parts = [len(entry.encode()).to_bytes(2, "little") + entry.encode() for entry in (publisher, *topics)]
    raw = len(parts).to_bytes(2, "little") + b"".join(parts)
    names = frozenset(name.encode() for name in wanted)
    marks = tuple(len(name).to_bytes(2, "little") + name for name in names)
    assert _find_topics(raw, marks) == [
        (place, topic.encode()) for place, topic in enumerate(topics, 1) if topic in wanted
    ]


@settings(deadline=None)
@given(
    batches=st.lists(
        st.tuples(
            NAMES,
            st.lists(
                st.tuples(TOPICS, st.binary(max_size=5), st.binary(max_size=2)), min_size=1, max_size=40
            ),
        ),
        min_size=1,
        max_size=12,
    ),
    wanted=st.lists(TOPICS, min_size=1, max_size=3),
)
def test_named_topics_are_the_records_that_a_look_at_all_of_them_gives(
    batches: list[tuple[str, list[tuple[str, bytes, bytes]]]], wanted: list[str]
) -> None:
    topics = TopicMatcher(wanted)
    assert topics.matching_topics
    every, chosen = (
        ArrowBatchBuilder(record_schema(), INSTANCE, one)
        for one in (
            RecordFilter(),
            RecordFilter(topic=topics.matches, needles=topics.literal_parts, names=topics.matching_topics),
        )
    )
    first = 1
    for publisher, records in batches:
        named, bodies, headers = (list(column) for column in zip(*records, strict=True))
        batch = Batch.parse(build_batch(publisher, named, bodies, headers, first))
        batch.stamp(origin=1, epoch=1, first_sequence=first, accepted_at=NOON + first)
        first += len(records)
        every.add(batch)
        chosen.add(batch)
    whole, made = every.build_batch(), chosen.build_batch()
    assert whole is not None
    expected = [row for row in whole.to_pylist() if row["topic"] in wanted]
    assert (made.to_pylist() if made is not None else []) == expected


def test_one_dictionary_far_longer_than_the_others(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        for size in [2] * 20 + [1_000] + [5] * 20:
            append(journal, [(f"t.{n}", b"%d" % n) for n in range(size)])
    rows = read_all(tmp_path).to_pylist()
    assert all(row["topic"] == f"t.{row['body'].decode()}" for row in rows)
    assert {row["publisher"] for row in rows} == {"writer"}


def _dictionary(batch: Batch) -> bytes:
    return bytes(batch.buf[HEADER_SIZE : HEADER_SIZE + batch.header.dictionary_length])
