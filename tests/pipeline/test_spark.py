"""End to end on a local Spark, over journals that the broker's Journal wrote."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from broker_core.journal.reader_leases import leases_path
from broker_core.journal.segment import segment_name
from pipeline.__main__ import to_sluice_error
from pipeline.jobs import client_history, lake
from sluice_spark import journal
from tests.pipeline.support import (
    INSTANCE,
    NOON,
    SECOND,
    FakeReporter,
    append,
    event,
    fill,
    journal_location,
    move,
    open_journal,
    settings_in,
)

MS = NOON // 1_000_000

pytestmark = pytest.mark.slow


def load(spark: SparkSession, home: Path, **wanted: object) -> DataFrame:
    place = journal_location(home)
    return journal(spark, place.directory, archive=place.archive, instance=INSTANCE, **wanted)  # type: ignore[arg-type]


def test_spark_sees_every_record_of_every_form_of_segment(spark: SparkSession, tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 40)
    move(tmp_path, "compress", slice(0, 2))
    move(tmp_path, "archive", slice(1, 3))
    frame = load(spark, tmp_path)
    row = frame.agg(
        F.count("*").alias("n"),
        F.countDistinct("sequence").alias("different"),
        F.max("sequence").alias("last"),
        F.sum(F.get_json_object(F.col("body").cast("string"), "$.n").cast("long")).alias("total"),
        F.min("accepted_at").cast("double").alias("at"),
    ).first()
    assert row is not None
    assert (row.n, row.different, row.last, row.total) == (last, last, last, last * (last + 1) // 2)
    assert row.at == NOON / SECOND


def test_two_choices_of_one_journal_do_not_disturb_each_other(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, [30] * 4)
    one, two = (
        load(spark, tmp_path, topics=("t.1",)),
        load(spark, tmp_path, topics=("t.2",), columns=("topic",)),
    )
    assert two.columns == ["topic"]
    both = one.select("topic").union(two)
    assert {row.topic: row["count"] for row in both.groupBy("topic").count().collect()} == {
        "t.1": 40,
        "t.2": 40,
    }


def test_a_choice_without_records_is_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, [5])
    assert load(spark, tmp_path, topics="nothing").count() == 0
    assert load(spark, tmp_path, start="2030-01-01").count() == 0


def test_the_lake_job_writes_each_record_once_however_often_it_runs(
    lent: SparkSession, tmp_path: Path
) -> None:
    last = fill(tmp_path, [50] * 40)
    move(tmp_path, "compress", slice(0, 2))
    settings = settings_in(tmp_path)
    arguments = argparse.Namespace(
        start=None,
        end=777,
        durable=None,
        skip_gaps=False,
        delta=False,
        typed=False,
        evolve=False,
        compact=False,
    )
    told = FakeReporter()
    first = lake.run(settings, arguments, told)
    assert (first["records"], first["first"], first["last"]) == (777, 1, 777)
    arguments.end = None
    assert lake.run(settings, arguments, told)["records"] == last - 777
    assert lake.run(settings, arguments, told)["records"] == 0
    assert told.notes[-1] == "The lake is up to date."
    table = lent.read.parquet(str(settings.records))
    row = table.agg(
        F.count("*"), F.countDistinct("sequence"), F.max("sequence"), F.countDistinct("day")
    ).first()
    assert row is not None
    assert tuple(row) == (last, last, last, 1)


def test_client_history_by_hour_from_the_journaled_events(lent: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, [20] * 3)
    told = [
        event("slow", MS, "connect"),
        event("slow", MS + 1_000, "offline_start", lag_messages=500, lag_bytes=50_000, lag_ms=900.5),
        event("quick", MS + 2_000, "sample", lag_messages=3),
        b"not JSON",
        event("slow", MS + 61_000, "offline_stop", lag_messages=10),
    ]
    with open_journal(tmp_path) as log:
        append(log, [("$SLUICE.clients", body) for body in told], at=NOON + 100 * SECOND, publisher="$SLUICE")
    settings, arguments = settings_in(tmp_path), argparse.Namespace(all=False, durable=None, skip_gaps=False)
    result = client_history.run(settings, arguments, FakeReporter())
    assert (result["hours"], result["clients"], result["unreadable"]) == (2, 2, 1)
    rows = (
        pq.ParquetFile(settings.client_history / "day=2026-11-21" / f"{INSTANCE}.parquet").read().to_pylist()
    )
    assert [row["client"] for row in rows] == ["quick", "slow"]
    slow = rows[1]
    assert (slow["offline_ms"], slow["offline_episodes"], slow["lag_messages_max"]) == (60_000, 1, 500)
    assert client_history.run(settings, arguments, FakeReporter())["hours"] == 2
    assert len(list(settings.client_history.glob("day=*/*.parquet"))) == 1


def run_command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m pipeline` as a user does, on a JVM with options for a quick start."""
    quick = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1", **environment}
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *words],
        env=quick,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_command_reports_in_json_and_ends_with_0(tmp_path: Path) -> None:
    last = fill(tmp_path, [20] * 3)
    done = run_command("lake", "--json", "--home", str(tmp_path), "--master", "local[1]")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["event"] == "result"
    assert (lines[-1]["records"], lines[-1]["gaps"]) == (last, [])
    assert not leases_path(journal_location(tmp_path).directory, INSTANCE).exists()
    checked = run_command("lake-check", "--json", "--home", str(tmp_path))
    assert json.loads(checked.stdout.splitlines()[-1])["through"] == last


def test_what_spark_says_of_a_master_that_does_not_work_is_one_sentence(tmp_path: Path) -> None:
    fill(tmp_path, [20])
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    done = run_command("lake", "--home", str(tmp_path), "--master", f"spark://127.0.0.1:{port}")
    assert done.returncode == 1
    assert done.stderr.startswith("master_unreachable: Spark can't be started on spark://127.0.0.1:")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "lake").exists()


def test_what_a_worker_meets_reaches_the_operator_as_itself(lent: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, [20] * 3)
    path = journal_location(tmp_path).directory / segment_name(INSTANCE, 1)
    content = bytearray(path.read_bytes())
    content[4096 + 200] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(Exception, match="journal_damaged") as caught:
        load(lent, tmp_path).collect()
    error = to_sluice_error(caught.value)
    assert error.code == "journal_damaged"
    assert error.sentence.startswith("sluice-1.00000000000000000001.journal is damaged at byte")
