"""The console's use of the pipeline: the command that starts a job, and the hours read from the lake."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from django.core.management import CommandError, call_command

from console.management.commands.pipeline import Command
from console.models import ClientHour, ClientMinute
from console.queries.pipeline_history import client_hours
from console.queries.statistics import time_series
from console.services.client_hours_import import import_new_hours
from console.services.policies import ensure_instance
from pipeline.jobs.client_history import write_hours
from pipeline.schemas import CLIENT_HOURS
from tests.pipeline.support import fill

H = 1_795_262_400_000
HOUR = 3_600_000


@pytest.fixture
def lake(tmp_path: Path, settings: Any) -> Path:
    settings.SLUICE_LAKE_DIRECTORY = tmp_path / "lake"
    settings.SLUICE_INSTANCE = "sluice-1"
    return tmp_path / "lake" / "client_history"


def write(directory: Path, *rows: dict[str, Any]) -> None:
    table = pa.Table.from_pylist(
        [{"hour": H * 1_000, "samples": 1} | row for row in rows], schema=CLIENT_HOURS
    )
    write_hours(directory, "sluice-1", table, None)


def test_without_a_lake_a_client_has_no_hours(lake: Path) -> None:
    assert client_hours("slow") == []


def test_a_clients_hours_come_in_order_and_nobody_elses(lake: Path) -> None:
    write(
        lake,
        {"client": "slow", "hour": (H + 13 * HOUR) * 1_000, "samples": 2},
        {"client": "slow", "offline_ms": 7},
        {"client": "other"},
    )
    found = client_hours("slow")
    assert [(row["at"], row["samples"], row["offline_ms"]) for row in found] == [
        (H, 1, 7),
        (H + 13 * HOUR, 2, 0),
    ]
    assert found[0]["hour"] == datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert client_hours("slow", instance="another") == []


def test_only_the_newest_days_are_read(lake: Path) -> None:
    write(lake, {"client": "slow"}, {"client": "slow", "hour": (H + 24 * HOUR) * 1_000})
    assert [row["at"] for row in client_hours("slow", days=1)] == [H + 24 * HOUR]


def test_a_file_that_is_no_parquet_is_left_out(lake: Path) -> None:
    write(lake, {"client": "slow"})
    broken = lake / "day=2026-11-20" / "sluice-1.parquet"
    broken.parent.mkdir()
    broken.write_bytes(b"not Parquet")
    assert len(client_hours("slow")) == 1


@pytest.mark.django_db
def test_the_command_carries_the_jobs_own_sentence(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, [3])
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    settings.SLUICE_HOME, settings.SLUICE_INSTANCE = tmp_path, "sluice-1"
    settings.SLUICE_JOURNAL_DIRECTORY = tmp_path / "journal"
    settings.SLUICE_ARCHIVE_DIRECTORY = tmp_path / "archive"
    settings.SLUICE_LAKE_DIRECTORY = tmp_path / "lake"
    told = io.StringIO()
    with pytest.raises(CommandError, match="apt install openjdk-17-jre-headless") as caught:
        call_command("pipeline", "run", "lake", stdout=told)
    assert caught.value.returncode == 1
    assert not (tmp_path / "lake").exists()


def test_reports_are_shown_as_lines_where_there_is_no_terminal() -> None:
    told = io.StringIO()
    command = Command(stdout=told)
    command._show({"event": "progress", "done": 1, "total": 4, "what": "spans"})
    command._show({"event": "note", "text": "A sentence."})
    command._show({"event": "result", "records": 1_234, "gaps": []})
    assert [line.split() for line in told.getvalue().splitlines()] == [
        ["1", "of", "4", "spans"],
        ["A", "sentence."],
        ["records", "1,234"],
        ["gaps", "[]"],
    ]


@pytest.mark.django_db
def test_hours_of_the_lake_are_taken_into_the_database_once_and_answer_long_ranges(lake: Path) -> None:
    instance = ensure_instance("sluice-1")
    at = datetime(2026, 11, 21, 12, tzinfo=UTC)
    write(
        lake,
        {"client": "slow", "transport": "tcp", "lag_ms_max": 90, "offline_ms": 5, "warned": 2},
        {"client": "slow", "transport": "ws", "lag_ms_max": 900, "lag_bytes_max": 4},
        {"client": "slow", "transport": "ws", "hour": (H + HOUR) * 1_000, "lag_ms_max": 1},
    )
    now = at + timedelta(days=80)
    assert (import_new_hours(now), import_new_hours(now)) == (3, 0)
    ClientMinute.objects.create(
        instance=instance, client="slow", at=at + timedelta(hours=2), state="live", lag_ms=7
    )
    found = time_series(instance, "client", "slow", now - timedelta(days=83), now, 60, now)
    assert found["source"] == "hours"
    assert [
        (one["at"] - H // 1_000, one["state"], one["lag_ms"], one["lag_bytes"]) for one in found["points"]
    ] == [
        (0, "offlined", 900, 4),
        (3_600, "live", 1, 0),
        (7_200, "live", 7, 0),
    ]
    write(lake, {"client": "slow", "transport": "ws", "lag_ms_max": 3})
    assert import_new_hours(now) == 1
    assert list(ClientHour.objects.filter(at=at).values_list("transport", "lag_ms", "acts")) == [("ws", 3, 0)]
    assert import_new_hours(now + timedelta(days=13)) == 0
