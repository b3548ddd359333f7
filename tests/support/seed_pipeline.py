"""Runs of the pipeline's jobs as their own processes leave them beside the lake, without Spark."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from django.conf import settings

from broker_core.errors import JournalError
from pipeline.config import settings_from
from pipeline.plots import PlotSpec
from pipeline.run_record import RecordingReporter


class _Silent:
    """A reporter that ignores everything."""

    def progress(self, done: int, total: int, unit: str) -> None: ...

    def note(self, sentence: str) -> None: ...

    def table(self, *_: Any) -> None: ...

    def page(self, html: str) -> None: ...


SILENT = _Silent()


def seed_runs_of_jobs() -> None:
    """Store two runs as jobs' processes do: one with tables and plots, one that failed."""
    lake = Path(settings.SLUICE_LAKE_DIRECTORY)
    lake.mkdir(parents=True, exist_ok=True)
    home = settings_from({}, home=lake.parent, lake=lake)
    hours = [datetime(2026, 11, 22, hour, tzinfo=UTC) for hour in range(24)]
    grown = pa.table(
        {
            "hour": hours * 2,
            "topic": ["flights.UA"] * 24 + ["flights.DL"] * 24,
            "bytes": [(2 + hour % 7) * 2**24 for hour in range(48)],
        }
    )
    topics = pa.table({"topic": ["flights.UA", "flights.DL"], "bytes_a_day": [1_610_612_736, 1_543_503_872]})
    record = RecordingReporter(SILENT, "capacity", argparse.Namespace(days=7))
    record.note("The log grows by 2.94 GiB a day: its disk is full in 23 days.")
    record.table(
        "topics",
        topics,
        "Growth by topic",
        [PlotSpec("Bytes a day", "topic", ("bytes_a_day",), "bars", unit="bytes")],
    )
    record.table(
        "hours",
        grown,
        "Growth by hour",
        [PlotSpec("Bytes by hour", "hour", ("bytes",), by="topic", unit="bytes")],
    )
    record.store_run(home, {"records": 2_811_904, "topics": 2, "disk_full_in_days": 23.1})
    failed = RecordingReporter(SILENT, "audit", argparse.Namespace(strict=True))
    failed.store_run(
        home, {}, JournalError("journal_short", "Records 840,001 to 840,417 can't be read.", "See journals.")
    )
