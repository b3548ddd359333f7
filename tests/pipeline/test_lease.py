"""Segments that are removed before a reader's lease is written: the reader plans without them."""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sluice_spark.lease
from broker_core.config.document import default_policy
from broker_core.journal.files import FileSystem
from broker_core.journal.reader_leases import leases_path, write_lease
from broker_core.journal.removal_records import RemovalReceipts, RemovalRecord
from pipeline.jobs import audit, backtest, capacity, client_history, lake, state
from sluice_spark.arrow_reader import ReadRequest
from sluice_spark.log import examine_leased_log
from sluice_spark.options import StreamLimits
from sluice_spark.stream import JournalStream
from tests.pipeline.support import (
    INSTANCE,
    NOON,
    FakeReporter,
    append,
    event,
    journal_location,
    numbered_messages,
    open_journal,
    settings_in,
)

RANGE = {"start": "", "end": "", "host_memory": 1 << 30, "durable": None, "skip_gaps": False}
JOBS: dict[Any, dict[str, Any]] = {
    audit: {"start": None, "end": None, "strict": False},
    state: {"at": "", "since": "", "topics": "", "key": "", "durable": None, "skip_gaps": False},
    capacity: {**RANGE, "policy": "", "retention_hours": None},
    backtest: {**RANGE, "policy": "plain", "grid": "", "save": ""},
    client_history: {"all": False, "durable": None, "skip_gaps": False},
    lake: {
        **dict.fromkeys(("typed", "evolve", "compact", "delta", "skip_gaps"), False),
        **dict.fromkeys(("start", "end", "durable")),
    },
}


def write_segments(home: Path) -> tuple[list[int], int]:
    """Write several segments; return the first sequence of each, and the last of all."""
    with open_journal(home) as log:
        for number in range(24):
            append(log, numbered_messages(60, log.next_sequence), at=NOON + number)
            sample = event("ann", (NOON + number) // 1_000_000, "sample")
            append(log, [("$SLUICE.clients", sample)], publisher="$SLUICE", at=NOON + number)
        log.finish_sealed()
        segments, last = [one.first_sequence for one in log.segments()], log.next_sequence - 1
    assert len(segments) > 2
    return segments, last


@pytest.fixture
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Remove the oldest segment before the first lease is written; the list has the sequences of leases."""
    written: list[int] = []

    def remove_and_write(*arguments: Any) -> None:
        if not written:
            with open_journal(tmp_path) as log:
                log.remove([log.segments()[0].name], NOON)
        write_lease(*arguments)
        written.append(arguments[-1].sequence)

    monkeypatch.setattr(sluice_spark.lease, "write_lease", remove_and_write)
    return written


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__.rpartition(".")[2])
def test_a_job_plans_only_what_its_lease_protects(
    job: Any, lent: SparkSession, tmp_path: Path, leases: list[int]
) -> None:
    segments, last = write_segments(tmp_path)
    settings = settings_in(tmp_path)
    (settings.lake / "policies").mkdir(parents=True)
    (settings.lake / "policies" / "plain.json").write_text(json.dumps(default_policy(INSTANCE).to_dict()))
    result = job.run(settings, argparse.Namespace(**JOBS[job]), FakeReporter())
    assert leases[0] <= segments[1]
    assert not leases_path(journal_location(tmp_path).directory, INSTANCE).exists()
    assert result.get("first", segments[1]) == segments[1]
    assert result.get("records", last - segments[1] + 1) == last - segments[1] + 1


def test_a_stream_starts_with_what_its_lease_protects(tmp_path: Path, leases: list[int]) -> None:
    segments, _ = write_segments(tmp_path)
    stream = JournalStream(journal_location(tmp_path), ReadRequest(), StreamLimits())
    offset = stream.initialOffset()
    assert offset[INSTANCE]["bookmark"] == f"{INSTANCE}|{segments[1] - 1}|"
    assert leases[-1] == segments[1]
    stream.stop()


def test_a_job_waits_for_a_removal_that_its_lease_did_not_prevent(tmp_path: Path) -> None:
    """The removal has written its receipt before the lease; it removes the files afterwards."""
    segments, _ = write_segments(tmp_path)
    location = journal_location(tmp_path)
    receipts = RemovalReceipts(FileSystem(), location.directory, INSTANCE)
    receipts.append(RemovalRecord(1, segments[2] - 1, 1, 1, 2, NOON, NOON, NOON))
    files = sorted(path for path in location.directory.iterdir() if ".journal" in path.name)

    def remove_slowly() -> None:
        for path in files:
            if path.name.startswith(tuple(f"{INSTANCE}.{one:020d}" for one in segments[:2])):
                time.sleep(0.2)
                path.unlink()

    removal = threading.Thread(target=remove_slowly)
    removal.start()
    with sluice_spark.lease.pin_log(location, "lake", print) as (log, _):
        assert log.segments == tuple(segments[2:])
    removal.join()


def test_a_job_plans_what_an_interrupted_removal_left(tmp_path: Path) -> None:
    segments, _ = write_segments(tmp_path)
    location = journal_location(tmp_path)
    receipts = RemovalReceipts(FileSystem(), location.directory, INSTANCE)
    receipts.append(RemovalRecord(1, segments[2] - 1, 1, 1, 2, NOON, NOON, NOON))
    assert examine_leased_log(location, patience_s=0.1).segments == tuple(segments)


@pytest.mark.parametrize("sequence", [1, 500])
def test_a_lease_releases_what_its_job_does_not_read(
    sequence: int, tmp_path: Path, leases: list[int]
) -> None:
    segments, _ = write_segments(tmp_path)
    notes: list[str] = []
    with sluice_spark.lease.pin_log(journal_location(tmp_path), "lake", notes.append) as (log, lease):
        assert log.first == segments[1]
        lease.advance(sequence)
        lease.renew()
    assert leases[-1] == max(sequence, 1)
    assert notes == []
