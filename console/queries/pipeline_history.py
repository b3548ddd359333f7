"""A client's hours from the lake, as the pipeline's job `client-history` wrote them; read with pyarrow, not Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from django.conf import settings

DAYS = 31
"""Days of history that are shown, counted back from the newest there is."""
NUMBERS = (
    "samples",
    "lag_messages_max",
    "lag_messages_mean",
    "lag_bytes_max",
    "lag_ms_max",
    "offline_episodes",
    "offline_ms",
    "connects",
    "disconnects",
)


def client_hours(client: str, *, instance: str | None = None, days: int = DAYS) -> list[dict[str, Any]]:
    """The client's hours, oldest first: `hour` as datetime (UTC), `at` the same in ms, and the numbers of NUMBERS.

    Hours in which the broker had nothing to say of the client are left out. Empty when the job hasn't run yet.
    """
    rows = hours_of([client], instance or settings.SLUICE_INSTANCE, days)
    return [{key: value for key, value in row.items() if key != "client"} for row in rows]


def hours_of(clients: Sequence[str], instance: str, days: int) -> list[dict[str, Any]]:
    """The same of several, each row with its `client`; a file is read once."""
    directory = Path(settings.SLUICE_LAKE_DIRECTORY) / "client_history"
    newest = sorted(directory.glob(f"day=*/{instance}.parquet"), reverse=True)[:days]
    rows = [row for path in reversed(newest) for row in _hours_in(path, clients)]
    return sorted(rows, key=lambda row: int(row["at"]))


def _hours_in(path: Path, clients: Sequence[str]) -> list[dict[str, Any]]:
    try:
        # A file at a time: given a directory, pyarrow would open its neighbours as well.
        table = pq.ParquetFile(path).read(columns=["client", "hour", *NUMBERS])
    except (OSError, pa.ArrowInvalid, KeyError):
        return []  # replaced or removed meanwhile, or of another version: the page shows what there is
    table = table.filter(pc.is_in(table.column("client"), pa.array(clients, pa.string())))
    micros = table.column("hour").cast(pa.int64()).to_pylist()
    return [
        {**row, "hour": datetime.fromtimestamp(at / 1_000_000, UTC), "at": at // 1_000}
        for row, at in zip(table.drop_columns(["hour"]).to_pylist(), micros, strict=True)
    ]
