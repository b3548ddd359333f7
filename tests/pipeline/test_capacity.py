"""Capacity: results derived from recorded data, and the job over a journal of three days."""

from __future__ import annotations

import argparse
from array import array
from pathlib import Path

import msgspec
import numpy as np
import pytest
from pyspark.sql import SparkSession

from broker_core.documents.system_records import TrafficRowKey, TrafficSample, pack_samples
from broker_core.journal.appender import JournalOptions
from broker_core.journal.segment import HEADER_SIZE, segment_name
from broker_core.names import CLIENTS_TOPIC, TRAFFIC_TOPIC
from pipeline.jobs import capacity
from pipeline.transforms.capacity import DiskVolume, days_until_limit, percentile, setting_advice
from sluice_spark.log import examine_log
from tests.pipeline.support import (
    NOON,
    SECOND,
    FakeReporter,
    append,
    event,
    fill,
    open_journal,
    settings_in,
    write_sidecar,
)

MS = NOON // 1_000_000
HOUR, DAY = 3_600, 86_400


def test_percentiles_are_over_all_time_and_limits_are_reached_by_the_line_through_daily_peaks() -> None:
    assert [percentile(np.array([5.0, 9.0]), one, 100) for one in (50.0, 98.5, 99.0, 100.0)] == [0, 5, 5, 9]
    slots = np.array([0, DAY, 2 * DAY, 2 * DAY + 1])
    assert days_until_limit(100.0, slots, np.array([10.0, 20.0, 30.0, 1.0])) == pytest.approx(7.0)
    assert days_until_limit(100.0, slots, np.array([30.0, 20.0, 10.0, 1.0])) is None
    assert days_until_limit(100.0, slots[:2], np.array([10.0, 20.0])) is None


def test_advice_says_what_speaks_for_it_and_nothing_where_all_is_well() -> None:
    pool = {"pool": "instance", "of": "memory", "peak": 95, "limit": 100, "days_to_limit": None}
    disk = DiskVolume("journal", 1, 10, 5.0)
    told = setting_advice([pool], 7_200.0, 86_400.0, 3_600.0, [disk], 50, 45.0)
    assert [row["setting"] for row in told] == [
        "instance: memory limit",
        "journal retention",
        "client_policy.client_max_capacity",
        "disk of journal",
    ]
    assert (told[1]["now"], told[1]["recommended"], told[2]["recommended"]) == (
        "60.0 minutes",
        "3 hours",
        "70 %",
    )
    assert "the log covered 24.0 hours at the end" in told[1]["why"]
    told = setting_advice([pool], 7_200.0, 86_400.0, None, [disk], 50, 45.0)
    assert (told[1]["now"], told[1]["recommended"]) == ("nothing is removed", "3 hours at least")
    assert "full in 2.0 days" in told[3]["why"]
    calm = pool | {"peak": 50}
    assert setting_advice([calm], 0.0, 3_600.0, None, [DiskVolume("journal", 1, 10, 0.0)], 50, 1.0) == []


def status_records(at_ms: int, *clients: tuple[str, int]) -> bytes:
    """Return one second's record of clients and their memory; each is ten seconds behind."""
    figures = array("q")
    for _, memory in clients:
        row = dict.fromkeys(TrafficSample._fields, 0) | {
            "at": at_ms,
            "memory": memory,
            "oldest_at": at_ms - 10_000,
        }
        figures.extend(row[name] for name in TrafficSample._fields)
    whose = [TrafficRowKey(name, "tcp", "", MS, "t") for name, _ in clients]
    return msgspec.json.encode(pack_samples(at_ms, whose, figures, 0))


@pytest.mark.slow
def test_growth_pools_and_readers_from_one_pass_over_the_log(lent: SparkSession, tmp_path: Path) -> None:
    with open_journal(tmp_path) as log:
        append(log, [("big", b"x" * 1_000)] * 30 + [("small", b"x" * 10)] * 20, at=NOON)
        append(
            log, [(CLIENTS_TOPIC, event("back", MS + 1, "disconnect"))], at=NOON + SECOND, publisher="$SLUICE"
        )
        for second in (10, 11, 70):
            at = NOON + second * SECOND
            told = status_records(MS + second * 1_000, ("one", 600 * second), ("two", 400))
            append(log, [(TRAFFIC_TOPIC, told)], at=at, publisher="$SLUICE")
        came = [(CLIENTS_TOPIC, event("back", MS + HOUR * 1_000 + 1, "connect"))]
        append(log, came, at=NOON + HOUR * SECOND, publisher="$SLUICE")
        append(log, [("big", b"x" * 1_000)] * 10, at=NOON + 2 * HOUR * SECOND)
    told, settings = FakeReporter(), settings_in(tmp_path)
    arguments = argparse.Namespace(
        start="", end="", policy="", host_memory=1_000_000, retention_hours=0.5, durable=None, skip_gaps=False
    )
    result = capacity.run(settings, arguments, told)
    assert (result["log_held_s"], result["retention_s"]) == (2 * HOUR, 1_800)
    assert (result["records"], result["covers_s"], result["reaches_back_s"]) == (65, 2 * HOUR, float(HOUR))
    big = told.tables["topics"][0]
    assert (big["topic"], big["records"], big["bytes"], big["bytes_a_day"]) == ("big", 40, 40_000, 480_000)
    hours = [(row["topic"], row["bytes"]) for row in told.tables["growth"] if row["topic"] == "big"]
    assert hours == [("big", 30_000), ("big", 10_000)]
    memory = next(row for row in told.tables["pools"] if row["of"] == "memory")
    assert (memory["pool"], memory["p99"], memory["peak"], memory["limit"]) == (
        "instance",
        0,
        42_400,
        100_000,
    )
    assert [(row["client"], row["behind_s"]) for row in told.tables["readers"]] == [
        ("back", 0.0),
        ("one", 10.0),
        ("two", 10.0),
    ]
    assert {row["setting"]: row["now"] for row in told.tables["advice"]}[
        "journal retention"
    ] == "30.0 minutes"
    assert {row["setting"] for row in told.tables["advice"]} >= {
        "journal retention",
        "client_policy.client_max_capacity",
    }


def test_a_burst_gives_no_forecast_in_days_and_each_volume_has_its_own_time(
    lent: SparkSession, tmp_path: Path
) -> None:
    """One second of traffic would fill any disk.

    The content of a log of thirty days did not arrive in the requested hours.
    """
    with open_journal(tmp_path) as log:
        append(log, [("big", b"x" * 1_000)] * 30, at=NOON)
        append(log, [("big", b"x" * 1_000)] * 30, at=NOON + SECOND)
    told, settings = FakeReporter(), settings_in(tmp_path)
    arguments = argparse.Namespace(
        start="",
        end="",
        policy="",
        host_memory=1_000_000,
        retention_hours=None,
        durable=None,
        skip_gaps=False,
    )
    result = capacity.run(settings, arguments, told)
    assert (result["covers_s"], result["bytes"], result["bytes_a_day"], result["disk_days"]) == (
        1,
        60_000,
        None,
        None,
    )
    assert told.tables["topics"][0]["bytes_a_day"] is None
    assert any("The log covers 1 s" in note for note in told.notes)
    day = DAY
    (one,) = capacity.disk_volumes(settings, 30 * day, 0)
    assert one.grows == pytest.approx(one.used / 30)
    for name in ("day=2026-10-23", "day=2026-11-21", "day=elsewhere"):
        folder = settings.lake / "records" / name
        folder.mkdir(parents=True)
        (folder / "some.parquet").write_bytes(b"x" * 8_192)
    (both,) = capacity.disk_volumes(settings, 2 * day, 0)
    kept = both.used - one.used
    assert kept > 0 and both.grows == pytest.approx(one.used / 2 + kept / 30)


def test_what_a_segment_takes_in_advance_is_no_growth(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with open_journal(tmp_path, JournalOptions(segment_size=8 * 1024 * 1024, preallocated=1)) as log:
        nbytes = append(log, [("t", b"x" * 5_000)] * 100).nbytes
        (path,) = settings.log.directory.glob("*.journal")
        empty = capacity.unused_preallocation(examine_log(settings.log))
        (one,) = capacity.disk_volumes(settings, 2 * DAY, empty)
    assert path.stat().st_size - empty == HEADER_SIZE + nbytes < 1_000_000
    assert one.grows < 1_000_000 < one.used
    last = fill(tmp_path / "sealed", [50] * 40)
    sealed = examine_log(settings_in(tmp_path / "sealed").log)
    write_sidecar(
        settings_in(tmp_path / "sealed").log.directory
        / segment_name(sealed.location.instance, sealed.segments[-1])
    )
    assert last and capacity.unused_preallocation(sealed) == 0
