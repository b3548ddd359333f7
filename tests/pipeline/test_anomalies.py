"""Anomalies: each client is compared with its own history, and findings state their reason."""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from broker_core.errors import OperatorError
from pipeline.jobs import anomalies
from pipeline.jobs.client_history import write_hours
from pipeline.schemas import CLIENT_HOURS
from tests.pipeline.support import INSTANCE, NOON, FakeReporter, settings_in

ROOT = Path(__file__).resolve().parents[2]
HOUR_MS = 3_600_000
START = NOON // 1_000_000 // (24 * HOUR_MS) * 24 * HOUR_MS
HOURS = 96
ARGUMENTS = argparse.Namespace(days=14, recent=24, threshold=8.0)


def hour(client: str, number: int, messages: float, **more: Any) -> dict[str, Any]:
    """Return the row of one hour of a client that keeps up."""
    calm = {
        "client": client,
        "transport": "tcp",
        "hour": (START + number * HOUR_MS) * 1_000,
        "samples": 6,
        "connected_ms": HOUR_MS,
        "lag_messages_max": 3,
        "lag_messages_mean": 0.2,
        "lag_ms_max": 20,
        "delivered_messages": round(messages),
        "delivered_bytes": round(messages) * 200,
        "rate_max": messages / 1_800,
    }
    return calm | more


def history() -> list[dict[str, Any]]:
    """Return rows of steady clients by day and night, one that lags in hour 90, one that goes silent, and a
    new one.
    """
    random = np.random.default_rng(7)
    rows = []
    for number in range(HOURS):
        day = 1.5 + np.sin(number / 24 * 2 * np.pi)
        for name in ("one", "two", "turns", "leaves"):
            bad = name == "turns" and number == 90
            more = (
                {"lag_messages_mean": 40_000.0, "lag_ms_max": 600_000, "offline_ms": 1_800_000} if bad else {}
            )
            if name != "leaves" or number <= 71:
                rows.append(hour(name, number, 36_000 * day * random.uniform(0.9, 1.1), **more))
        # The client is behind and offlined every hour, which is its normal state.
        rows.append(
            hour(
                "lame",
                number,
                9_000 * random.uniform(0.8, 1.2),
                lag_messages_mean=50_000.0 * random.uniform(0.7, 1.4),
                lag_ms_max=500_000,
                offline_ms=2_000_000,
            )
        )
    return [*rows, hour("new", HOURS - 2, 1.0)]


@pytest.mark.slow
def test_a_changed_client_is_found_with_its_reasons_and_a_constant_one_is_not(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with pytest.raises(OperatorError, match="no hourly history of clients"):
        anomalies.run(settings, ARGUMENTS, FakeReporter())
    assert not settings.lake.exists()
    write_hours(settings.client_history, INSTANCE, pa.Table.from_pylist(history(), schema=CLIENT_HOURS), None)
    result, tables = apart(tmp_path)
    assert (result["clients"], result["silent"], result["too_new"]) == (4, 1, 1)
    odd = tables["odd"]
    assert {row["client"] for row in odd} == {"turns", "leaves"}
    (turned,) = (row for row in odd if row["client"] == "turns")
    assert turned["hour"].timestamp() * 1_000 == START + 90 * HOUR_MS
    assert "behind" in turned["because"]
    assert "offlined: 50" in turned["because"]
    lame = str(
        max(tables["groups"], key=lambda row: row["offline"])["group"]
    )  # offlined for half of the time
    assert turned["usually_like"] != turned["now_like"] == lame
    assert sum(row["share_percent"] for row in tables["features"]) == pytest.approx(100, abs=0.5)


def apart(path: Path) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Run the job in a separate process, as in production; return its result and tables.

    daphne imports zope.interface here, which adds an attribute to MLlib's classes that MLlib cannot read.
    """
    command = [sys.executable, "-m", "tests.pipeline.test_anomalies", str(path)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=300)
    result, tables = pickle.loads(done.stdout)
    return result, tables


if __name__ == "__main__":
    told = FakeReporter()
    result = anomalies.run(settings_in(Path(sys.argv[1])), ARGUMENTS, told)
    sys.stdout.buffer.write(pickle.dumps((result, told.tables)))
