"""Hourly history of a client from the lake, as the pipeline job `client-history` wrote it.

Read with pyarrow.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from django.conf import settings

from console import current_instance

DAYS = 31
"""Days of history to return, counted back from the newest available day."""
SUMS = (
    "samples",
    "connected_ms",
    "delivered_messages",
    "delivered_bytes",
    "offline_episodes",
    "offline_ms",
    "connects",
    "disconnects",
    "warned",
    "offlined",
    "disconnected",
    "other_acts",
    "lost_messages",
)
"""Columns that are added when a client's transports are combined."""
PEAKS = (
    "lag_messages_max",
    "lag_messages_mean",
    "lag_bytes_max",
    "lag_ms_max",
    "outbox_bytes_max",
    "spool_bytes_max",
    "rate_max",
)
"""Columns whose maximum is taken when a client's transports are combined."""
NUMBERS = (*SUMS, *PEAKS)
"""Numeric columns of an hour."""


def client_hours(client: str, *, instance: str | None = None, days: int = DAYS) -> list[dict[str, Any]]:
    """Return a client's hours, oldest first.

    Each has `hour` (datetime, UTC), `at` (the same in ms) and `NUMBERS`. Hours without data of the client
    are omitted. Empty if the job has not run yet.
    """
    name = instance or current_instance.instance_name()
    directory = Path(settings.SLUICE_LAKE_DIRECTORY) / "client_history"
    newest = sorted(directory.glob(f"day=*/{name}.parquet"), reverse=True)[:days]
    rows = [row for path in reversed(newest) for row in _hours_in(path, client)]
    return sorted(rows, key=lambda row: int(row["at"]))


def read_hours(path: Path) -> pa.Table:
    """Return the hours in a file: client, transport, hour and `NUMBERS`.

    Empty if the file can't be read: it was replaced or removed meanwhile, or is not a lake file.
    """
    try:
        # Read one file: given a directory, pyarrow would also open the other files.
        table = pq.ParquetFile(path).read(columns=["client", "transport", "hour", *NUMBERS])
        texts = {name: pc.fill_null(table.column(name), "") for name in ("client", "transport")}
        numbers = {name: pc.fill_null(table.column(name), 0) for name in NUMBERS}
        return pa.table({**texts, "hour": table.column("hour"), **numbers})
    except (OSError, pa.ArrowInvalid, KeyError):
        return pa.table({})


def _hours_in(path: Path, client: str) -> list[dict[str, Any]]:
    table = read_hours(path)
    if not table.num_rows:
        return []
    rows = table.filter(pc.equal(table.column("client"), client))
    # A page shows one row per hour, regardless of the client's transports.
    hourly = rows.group_by("hour").aggregate(
        [*((name, "sum") for name in SUMS), *((name, "max") for name in PEAKS)]
    )
    hourly = hourly.rename_columns(
        [name if name == "hour" else name.rpartition("_")[0] for name in hourly.column_names]
    )
    micros = hourly.column("hour").cast(pa.int64()).to_pylist()
    return [
        {**row, "hour": datetime.fromtimestamp(at / 1_000_000, UTC), "at": at // 1_000}
        for row, at in zip(hourly.to_pylist(), micros, strict=True)
    ]
