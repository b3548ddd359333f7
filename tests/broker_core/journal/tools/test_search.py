"""The commands grep, stat and find over current, sealed, archived, compressed and damaged segments."""

from __future__ import annotations

import base64

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.batch import Batch, build_batch
from broker_core.bookmark import format_moment
from broker_core.errors import ClientError, OperatorError
from broker_core.filters import compile_filter
from broker_core.journal.frontier_file import encode_mark, frontier_path, read_mark
from broker_core.journal.segment import HEADER_SIZE
from broker_core.journal.segment_copies import compress_segment, copy_segment
from broker_core.journal.tools import search as module
from broker_core.journal.tools.inspect import record_lines
from broker_core.journal.tools.search import LogLocation, LogQuery, LogSearch, count_records, locate_record
from broker_core.subscriptions.topics import TopicPattern
from tests.broker_core.journal.support import INSTANCE, flip, open_journal

HOUR = 3_600 * 10**9
TOPICS = ("orders.a", "orders.b", "quotes")


def write(journal, count, *, at, publisher="anna", numbered=True, pad=1_000):
    """Write a batch whose records cycle through the topics; bodies are JSON that names the record."""
    first = journal.next_sequence
    names = [TOPICS[(first + row) % 3] for row in range(count)]
    bodies = [orjson.dumps({"n": first + row, "pad": "." * pad}) for row in range(count)]
    batch = Batch.parse(
        build_batch(publisher, names, bodies, first_publisher_sequence=first if numbered else 0)
    )
    batch.stamp(origin=journal.origin, epoch=journal.epoch, first_sequence=first, accepted_at=at)
    journal.write([batch])
    journal.sync()


@pytest.fixture
def journal_directory(tmp_path):
    """400 records, four an hour's minute; segments archived, archived and compressed, compressed, sealed,
    current.
    """
    journal = open_journal(tmp_path)
    for number in range(100):
        write(
            journal, 4, at=(1_000 + number // 25) * HOUR + number, publisher="anna" if number % 2 else "bert"
        )
    journal.finish_sealed()
    names = [segment.name for segment in journal.segments()]
    for name in names[:2]:
        prepared = tmp_path / "archive" / f"{name}.tmp"
        copy_segment(tmp_path / "journal" / name, prepared)
        journal.archive_swap(name, prepared)
    for segment in journal.segments()[1:3]:
        prepared = segment.path.with_name("x.tmp")
        compress_segment(segment.path, prepared)
        journal.compress_swap(segment.name, prepared)
    assert [segment.compressed for segment in journal.segments()[:4]] == [False, True, True, False]
    journal.close()
    return LogLocation(tmp_path / "journal", INSTANCE, tmp_path / "archive")


def sequences(search):
    return [found.batch.first_sequence + row for found in search for row in found.selected_rows.tolist()]


def expected(test):
    return [n for n in range(1, 401) if test(n)]


@pytest.mark.parametrize(
    ("query", "test"),
    [
        (LogQuery(), lambda n: True),
        (LogQuery(TopicPattern.parse("orders.a")), lambda n: n % 3 == 0),
        (LogQuery(TopicPattern.parse("orders.*")), lambda n: n % 3 < 2),
        (LogQuery(TopicPattern.parse("nothing")), lambda n: False),
        (LogQuery(filter=compile_filter("/n > 100 AND /n < 120")), lambda n: 100 < n < 120),
        (LogQuery(publisher="anna"), lambda n: (n - 1) // 4 % 2 == 1),
        (LogQuery(publisher="nobody"), lambda n: False),
        (LogQuery(first=7, last=250), lambda n: 7 <= n <= 250),
        (LogQuery(since=1_001 * HOUR, until=1_002 * HOUR), lambda n: 101 <= n <= 200),
        (
            LogQuery(
                TopicPattern.parse("quotes"), compile_filter("/n > 9"), None, "bert", 5, 300, 1_001 * HOUR
            ),
            lambda n: n % 3 == 2 and (n - 1) // 4 % 2 == 0 and 101 <= n <= 300,
        ),
    ],
)
def test_what_matches_is_found(journal_directory, query, test):
    search = LogSearch(journal_directory, query)
    assert sequences(search) == expected(test)
    assert search.problems == []


def test_segments_that_cannot_match_are_not_opened(journal_directory, monkeypatch):
    opened = []
    real = module.open_segment
    monkeypatch.setattr(module, "open_segment", lambda *args: opened.append(args[1]) or real(*args))
    sequences(LogSearch(journal_directory, LogQuery(first=395)))
    assert len(opened) == 1
    opened.clear()
    sequences(LogSearch(journal_directory, LogQuery(until=999 * HOUR)))
    assert opened == [393]  # the current segment has no sidecar to tell


def test_progress_ends_at_the_whole(journal_directory):
    told = []
    sequences(LogSearch(journal_directory, LogQuery(), lambda done, total: told.append((done, total))))
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1] > 400_000
    assert told == sorted(told)


def test_damage_is_reported_and_skipped(journal_directory):
    segment = sorted(journal_directory.directory.glob("*.journal"))[0]
    first = int(segment.name.split(".")[1])
    flip(segment, HEADER_SIZE + 300)
    search = LogSearch(journal_directory, LogQuery())
    missing = set(range(first, first + 4))
    assert sequences(search) == expected(lambda n: n not in missing)
    assert len(search.problems) == 1
    assert str(HEADER_SIZE) in search.problems[0]


def test_records_behind_the_frontier_are_not_there_yet(journal_directory):
    mark = read_mark(journal_directory.directory, INSTANCE)
    assert mark is not None
    frontier_path(journal_directory.directory, INSTANCE).write_bytes(encode_mark(mark._replace(sequence=398)))
    assert sequences(LogSearch(journal_directory, LogQuery(first=395))) == [395, 396, 397, 398]


def test_a_line_for_a_record(journal_directory):
    found = next(iter(LogSearch(journal_directory, LogQuery(TopicPattern.parse("quotes"), first=6))))
    line = orjson.loads(next(record_lines(found.batch, found.selected_rows, INSTANCE, found.segment)))
    assert line.pop("data")["n"] == 8
    assert line == {
        "bookmark": f"{INSTANCE}|8|",
        "topic": "quotes",
        "accepted_at": 1_000 * HOUR + 1,
        "publisher": "anna",
        "publisher_sequence": 8,
        "segment": found.segment,
    }


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), min_size=1, max_size=20), st.data()
)
def test_law_lines_say_what_records_hold(records, data):
    heads, bodies = zip(*records, strict=True)
    batch = Batch.parse(build_batch("p", ["t"] * len(bodies), bodies, heads))
    batch.stamp(origin=1, epoch=1, first_sequence=10, accepted_at=1)
    rows = sorted(data.draw(st.sets(st.integers(0, len(bodies) - 1))))
    found = [orjson.loads(line) for line in record_lines(batch, np.array(rows, np.int64), "i")]
    assert [line["bookmark"] for line in found] == [f"i|{10 + row}|" for row in rows]
    for line, row in zip(found, rows, strict=True):
        assert base64.b64decode(line.get("headers", "")) == heads[row]
        if "base64" in line:
            assert base64.b64decode(line["base64"]) == bodies[row]
        elif "text" in line:
            assert line["text"].encode() == bodies[row]
        else:
            assert line["data"] == orjson.loads(bodies[row])


def test_stat_counts_by_each_combination_in_one_pass(journal_directory):
    size = sum(len(orjson.dumps({"n": n, "pad": "." * 1_000})) for n in range(1, 401))
    by_topic, by_publisher, by_hour, crossed = count_records(
        LogSearch(journal_directory, LogQuery()), ("topic",), ("publisher",), ("hour",), ("publisher", "hour")
    )
    assert by_topic[0] == ("topic",)
    assert sorted((one.values[0], one.records) for one in by_topic[1]) == [
        ("orders.a", 133),
        ("orders.b", 134),
        ("quotes", 133),
    ]
    for _, counts in (by_topic, by_publisher, by_hour, crossed):
        assert sum(one.records for one in counts) == 400
        assert sum(one.nbytes for one in counts) == size
    assert [one.values[0] for one in by_hour[1]] == [f"1970-02-11T{16 + n}:00Z" for n in range(4)]
    assert [one.records for one in by_hour[1]] == [100] * 4
    assert len(crossed[1]) == 8


def test_stat_of_a_selection(journal_directory):
    ((_, counts),) = count_records(
        LogSearch(journal_directory, LogQuery(TopicPattern.parse("quotes"), publisher="anna")), ("topic",)
    )
    assert [(one.values, one.records) for one in counts] == [
        (("quotes",), len(expected(lambda n: n % 3 == 2 and (n - 1) // 4 % 2 == 1)))
    ]
    assert count_records([], ("topic",)) == [(("topic",), [])]


@pytest.mark.parametrize("sequence", [1, 5, 60, 130, 170, 260, 400])
def test_a_bookmark_is_located_in_every_form_of_segment(journal_directory, sequence):
    found = locate_record(journal_directory, f"{INSTANCE}|{sequence}|")
    assert (found["state"], found["bookmark"]) == ("found", f"{INSTANCE}|{sequence}|")
    assert found["publisher_sequence"] == sequence
    assert found["row"] == (sequence - 1) % 4
    assert found["topic"] == TOPICS[sequence % 3]
    assert found["path"].endswith(found["segment"])
    assert found["compressed"] == (found["member_offset"] is not None)
    if not found["compressed"]:
        with open(found["path"], "rb") as file:
            file.seek(found["offset"])
            assert Batch.parse(file.read(found["batch_bytes"])).first_sequence <= sequence


def test_moments_and_the_start_are_located(journal_directory):
    assert locate_record(journal_directory, format_moment(1_002 * HOUR))["bookmark"] == f"{INSTANCE}|201|"
    assert locate_record(journal_directory, "0")["bookmark"] == f"{INSTANCE}|1|"


def test_what_is_not_there_is_said(journal_directory, tmp_path):
    assert locate_record(journal_directory, f"{INSTANCE}|401|") == {
        "state": "ahead",
        "asked": f"{INSTANCE}|401|",
        "newest": f"{INSTANCE}|400|",
    }
    journal = open_journal(tmp_path)
    journal.remove([journal.segments()[0].name])
    oldest = journal.first_sequence
    journal.close()
    assert locate_record(journal_directory, f"{INSTANCE}|1|")["oldest"] == f"{INSTANCE}|{oldest}|"
    segment = sorted(journal_directory.directory.glob("*.journal"))[0]
    first = int(segment.name.split(".")[1])
    flip(segment, HEADER_SIZE + 300)
    assert locate_record(journal_directory, f"{INSTANCE}|{first}|")["next"] == f"{INSTANCE}|{first + 4}|"
    with pytest.raises(OperatorError, match="other"):
        locate_record(journal_directory, "other|1|")
    for text in ("x", "0|1|", f"{INSTANCE}|1|,{INSTANCE}|2|"):
        with pytest.raises((ClientError, OperatorError)):
            locate_record(journal_directory, text)


def test_a_log_that_is_not_there(tmp_path):
    with pytest.raises(OperatorError, match="no_journal"):
        list(LogSearch(LogLocation(tmp_path / "absent", "i"), LogQuery()))


def test_the_brokers_own_topics_are_found(tmp_path):
    journal = open_journal(tmp_path)
    batch = Batch.parse(build_batch("$SLUICE", ["$SLUICE.decisions"], [b"{}"]))
    batch.stamp(origin=journal.origin, epoch=1, first_sequence=1, accepted_at=5)
    journal.write([batch])
    journal.close()
    log = LogLocation(tmp_path / "journal", INSTANCE)
    assert sequences(LogSearch(log, LogQuery())) == [1]
    assert sequences(LogSearch(log, LogQuery(TopicPattern.parse("$SLUICE.>")))) == [1]
    assert sequences(LogSearch(log, LogQuery(TopicPattern.parse(">")))) == []


def test_a_log_that_is_being_written_is_searched_up_to_what_is_durable(tmp_path):
    journal = open_journal(tmp_path)
    for number in range(30):
        write(journal, 4, at=number + 1)
    log = LogLocation(tmp_path / "journal", INSTANCE, tmp_path / "archive")
    search = LogSearch(log, LogQuery(TopicPattern.parse("quotes")))
    assert sequences(search) == [n for n in range(1, 121) if n % 3 == 2]
    assert search.problems == []
    assert locate_record(log, f"{INSTANCE}|120|")["state"] == "found"
    assert locate_record(log, f"{INSTANCE}|121|")["newest"] == f"{INSTANCE}|120|"
    journal.close()
