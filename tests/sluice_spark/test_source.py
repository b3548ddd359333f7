"""format("sluice") on a real Spark, over journals written by the broker's Journal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from broker_core.errors import SluiceError
from broker_core.journal.appender import JournalOptions
from broker_core.journal.journal import Journal
from broker_core.journal.reader_leases import read_leases
from sluice_spark import gaps, journal, register
from tests.pipeline.support import (
    INSTANCE,
    NOON,
    SECOND,
    act_on_open,
    append,
    fill,
    identify,
    journal_location,
    move,
    numbered_messages,
    open_journal,
)

pytestmark = pytest.mark.slow
DRIVER = Path(__file__).with_name("stream_driver.py")


def read(spark: SparkSession, home: Path, **options: object) -> DataFrame:
    register(spark)
    plain = {name: str(value) for name, value in options.items()}
    return spark.read.format("sluice").options(path=str(journal_location(home).directory), **plain).load()


def sequences(frame: DataFrame) -> list[int]:
    return sorted(row.sequence for row in frame.select("sequence").collect())


def test_plain_options_choose_topics_columns_ranges_and_contents(spark: SparkSession, tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 40)
    move(tmp_path, "compress", slice(0, 2))
    move(tmp_path, "archive", slice(1, 3))
    assert sequences(read(spark, tmp_path)) == list(range(1, last + 1))
    chosen = read(
        spark,
        tmp_path,
        topics="t.1",
        columns="sequence,body",
        start="sluice-1|100|",
        end=200,
        filter="/n > 150",
    )
    assert chosen.columns == ["sequence", "body"]
    assert sequences(chosen) == [n for n in range(151, 201) if n % 3 == 1]
    late = read(spark, tmp_path, start="2026-11-21T12:00:38Z", partition_mb=1)
    assert sequences(late) == list(range(38 * 50 + 1, last + 1))


def test_a_view_in_sql_is_two_lines(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, [30] * 4)
    register(spark)
    path = journal_location(tmp_path).directory
    spark.sql(f"CREATE TEMPORARY VIEW flights USING sluice OPTIONS (path '{path}', topics 't.1, t.2')")
    rows = spark.sql("SELECT topic, count(*) AS n FROM flights GROUP BY topic ORDER BY topic").collect()
    assert [(row.topic, row.n) for row in rows] == [("t.1", 40), ("t.2", 40)]
    # The same view twice, with other conditions: nothing of one use stays with the other.
    both = spark.sql("SELECT * FROM flights WHERE topic = 't.1' UNION ALL SELECT * FROM flights")
    assert both.count() == 120


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topic": "a"}, "bad_setting: There is no option 'topic'. The options are"),
        ({"instance": "other"}, "no_journal: There is no journal of other in"),
        ({"start": 500}, "bad_range: Record 500 doesn't exist"),
        ({"filter": "/a ="}, "bad_filter: "),
        (
            {"max_rows": 5},
            "bad_setting: The option max_rows is for streams only. Leave it out",
        ),
        (
            {"checkpointLocation": "/tmp"},
            "bad_setting: checkpointLocation is an option of the stream's writer. Give it to writeStream",
        ),
    ],
)
def test_errors_are_one_sentence(
    spark: SparkSession, tmp_path: Path, options: dict[str, object], sentence: str
) -> None:
    fill(tmp_path, [5])
    with pytest.raises(Exception, match=sentence) as caught:
        read(spark, tmp_path, **options).collect()
    assert "Traceback" not in str(caught.value)
    with pytest.raises((SluiceError, TypeError)):
        journal(spark, journal_location(tmp_path).directory, **options)  # type: ignore[arg-type]


def test_what_a_journal_is_not_is_refused_in_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    """The source is not writable, has a fixed schema, and is no table of Spark's catalog."""
    fill(tmp_path, [5])
    path = str(journal_location(tmp_path).directory)
    before = {file: file.read_bytes() for file in Path(path).iterdir() if file.is_file()}
    frame, reader = read(spark, tmp_path), spark.read.format("sluice").option("columns", "sequence,topic")

    def streamed(given: str) -> None:
        stream = spark.readStream.format("sluice").schema(given).load(path).writeStream.format("noop")
        stream.trigger(availableNow=True).option(
            "checkpointLocation", str(tmp_path / "c")
        ).start().awaitTermination()

    acts: dict[Callable[[], object], str] = {
        lambda: frame.write.format("sluice").mode("append").save(path): "by its broker alone",
        lambda: (
            reader.schema("sequence int").load(path).count()
        ): "Leave schema\\(\\) out, and select columns with the option columns",
        lambda: streamed("sequence int"): "Leave schema\\(\\) out",
        lambda: spark.sql(
            f"CREATE TABLE flown USING sluice OPTIONS (path '{path}')"
        ): "Use CREATE TEMPORARY VIEW",
    }
    for act, sentence in acts.items():
        with pytest.raises(Exception, match=sentence) as caught:
            act()
        assert "Traceback" not in str(caught.value)
    assert reader.schema("sequence bigint, topic string").load(path).count() == 5, (
        "the journal's own is no other"
    )
    assert {file: file.read_bytes() for file in Path(path).iterdir() if file.is_file()} == before


def test_what_the_helper_raises_says_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, [5])
    with pytest.raises(SluiceError, match="Use a topic, a"):
        journal(spark, journal_location(tmp_path).directory, topics="a..b")
    with pytest.raises(SluiceError, match="Check the option path"):
        gaps(tmp_path / "nowhere")


def test_gaps_are_an_error_or_noted(spark: SparkSession, tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 40)
    with open_journal(tmp_path) as log:
        log.remove([log.segments()[0].name], NOON)
        oldest = log.first_sequence
    assert sequences(read(spark, tmp_path)) == list(range(oldest, last + 1))
    with pytest.raises(Exception, match=f"bookmark_gone: Records 1 to {oldest - 1} were removed 2026-11-21"):
        read(spark, tmp_path, start=1).collect()
    noted = read(spark, tmp_path, start=1, gaps="note")
    assert sequences(noted) == list(range(oldest, last + 1))
    assert [(gap.first, gap.last, gap.why) for gap in gaps(journal_location(tmp_path).directory)] == [
        (1, oldest - 1, "removed")
    ]


# Streams.


def stream(spark: SparkSession, home: Path, out: Path, **options: object) -> StreamingQuery:
    """Stream all available records into Parquet."""
    register(spark)
    plain = {name: str(value) for name, value in options.items()}
    frame = (
        spark.readStream.format("sluice").options(path=str(journal_location(home).directory), **plain).load()
    )
    query: StreamingQuery = (
        frame.writeStream.format("parquet")
        .option("path", str(out / "data"))
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    return query


def finished(query: StreamingQuery) -> list[int]:
    """Rows of each micro-batch that had any."""
    assert query.awaitTermination(300)
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def test_a_stream_goes_on_where_it_was_and_bounds_its_batches(spark: SparkSession, tmp_path: Path) -> None:
    last, out = fill(tmp_path, [50] * 40), tmp_path / "out"
    assert finished(stream(spark, tmp_path, out, max_rows=700)) == [700, 700, last - 1_400]
    assert finished(stream(spark, tmp_path, out)) == []
    more = fill(tmp_path, [7, 8])
    assert finished(stream(spark, tmp_path, out)) == [15]
    assert sequences(spark.read.parquet(str(out / "data"))) == list(range(1, more + 1))


def test_a_batch_is_bounded_by_bytes_too(spark: SparkSession, tmp_path: Path) -> None:
    with open_journal(tmp_path, JournalOptions(segment_size=1024 * 1024, preallocated=0)) as log:
        for _ in range(60):
            append(log, [("t", b"x" * 1_000)] * 50)
        last = log.next_sequence - 1
        log.finish_sealed()
    rows = finished(stream(spark, tmp_path, tmp_path / "out", max_bytes=500_000))
    assert sum(rows) == last
    assert len(rows) >= 5
    assert max(rows) <= 1_100


def test_a_stream_starts_at_a_moment_and_only_takes_its_topics(spark: SparkSession, tmp_path: Path) -> None:
    last, out = fill(tmp_path, [50] * 40), tmp_path / "out"
    finished(stream(spark, tmp_path, out, start="2026-11-21T12:00:10Z", topics="t.1", max_rows=300))
    wanted = [n for n in range(501, last + 1) if n % 3 == 1]
    assert sequences(spark.read.parquet(str(out / "data"))) == wanted


def test_a_checkpoint_is_a_lease_and_belongs_to_one_log(spark: SparkSession, tmp_path: Path) -> None:
    last, out = fill(tmp_path, [50] * 40), tmp_path / "out"
    identify(tmp_path, UUID(int=7))
    finished(stream(spark, tmp_path, out, reader="nightly", lease_hours=48))
    (held,) = read_leases(
        journal_location(tmp_path).directory, INSTANCE, time.time_ns() + 47 * 3_600 * SECOND
    )
    assert held.sequence == last + 1
    assert held.owner.startswith("pipeline stream nightly until ")
    identify(tmp_path, UUID(int=8))
    query = stream(spark, tmp_path, out, reader="nightly")
    with pytest.raises(Exception, match="other_log: There are two logs of the name sluice-1: the checkpoint"):
        query.awaitTermination(300)


def test_what_retention_took_from_a_stream_is_named(spark: SparkSession, tmp_path: Path) -> None:
    last, out = fill(tmp_path, [50] * 40), tmp_path / "out"
    finished(stream(spark, tmp_path, out, end=100))
    with open_journal(tmp_path) as log:
        log.remove([info.name for info in log.segments()[:2]], NOON)
        oldest = log.first_sequence
    query = stream(spark, tmp_path, out)
    with pytest.raises(Exception, match=f"bookmark_gone: Records 101 to {oldest - 1} were removed"):
        query.awaitTermination(300)
    finished(stream(spark, tmp_path, out, gaps="note"))
    assert sequences(spark.read.parquet(str(out / "data"))) == [*range(1, 101), *range(oldest, last + 1)]


class JournalWriter:
    """A thread that writes, rolls, compresses, archives and removes, as a broker does."""

    def __init__(self, home: Path) -> None:
        self.last = 0
        self.removed = 0
        self._home = home
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> JournalWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with open_journal(self._home, JournalOptions(segment_size=64 * 1024, preallocated=1)) as log:
            turn = 0
            while not self._stop.wait(0.01):
                turn += 1
                append(log, numbered_messages(turn % 90 + 1, log.next_sequence), at=NOON + turn * SECOND)
                self.last = log.next_sequence - 1
                if turn % 20 == 0:
                    log.finish_sealed()
                    act_on_open(log, self._home, ("compress", "archive")[turn // 20 % 2])
                    self._remove(log)

    def _remove(self, log: Journal) -> None:
        """Remove the oldest segment unless a lease retains it, as the broker plans it."""
        held = leased_from(self._home)
        names = [
            info.name for info in log.segments() if info.state != "current" and info.last_sequence < held
        ]
        if len(names) > 1:
            self.removed = log.remove(names[:-1], NOON).last_sequence


def leased_from(home: Path) -> int:
    """Return the stream's position by its lease; 0 before it has one."""
    place = journal_location(home)
    return min((h.sequence for h in read_leases(place.directory, INSTANCE, time.time_ns())), default=0)


def wait_until(condition: Callable[[], bool], seconds: float = 180) -> None:
    """Wait until another process makes the condition true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_exactly_once_into_parquet_over_kills_while_the_log_moves(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The driver is killed three times; retention removes records behind the checkpoint."""
    home, out = tmp_path / "home", tmp_path / "out"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with JournalWriter(home) as writer:
        wait_until(lambda: writer.last > 0)
        for batches in (1, 1, 2):
            words = [sys.executable, str(DRIVER), str(home), str(out / "data"), str(out / "checkpoint")]
            with (tmp_path / "driver.log").open("w") as said:
                driver = subprocess.Popen(
                    words, env=environment, stdout=subprocess.PIPE, stderr=said, start_new_session=True
                )
            assert driver.stdout is not None
            started = driver.stdout.readline()
            assert started == b"started\n", (tmp_path / "driver.log").read_text()
            upto = leased_from(home) + batches * 2_000
            wait_until(lambda upto=upto: leased_from(home) > upto)  # type: ignore[misc]
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert writer.removed > 0
    options = {"columns": "sequence,topic,body", "reader": "killed"}
    finished(stream(spark, home, out, **options))
    found = spark.read.parquet(str(out / "data"))
    row = found.agg(F.count("*"), F.countDistinct("sequence"), F.min("sequence"), F.max("sequence")).first()
    assert row is not None
    assert tuple(row) == (writer.last, writer.last, 1, writer.last)
    wrong = found.where(
        F.get_json_object(F.col("body").cast("string"), "$.n").cast("long") != F.col("sequence")
    )
    assert wrong.count() == 0
