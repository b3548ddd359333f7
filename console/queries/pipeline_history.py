"""A client's hours from the lake, as the pipeline's job `client-history` wrote them; read with pyarrow, not Spark."""

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
"""Days of history that are shown, counted back from the newest there is."""
SUMS = ("samples", "connected_ms", "delivered_messages", "delivered_bytes", "offline_episodes", "offline_ms", "connects", "disconnects",
        "warned", "offlined", "disconnected", "other_acts", "lost_messages")  # fmt: skip
PEAKS = (
    "lag_messages_max",
    "lag_messages_mean",
    "lag_bytes_max",
    "lag_ms_max",
    "outbox_bytes_max",
    "spool_bytes_max",
    "rate_max",
)
NUMBERS = (*SUMS, *PEAKS)


def client_hours(client: str, *, instance: str | None = None, days: int = DAYS) -> list[dict[str, Any]]:
    """The client's hours, oldest first: `hour` as datetime (UTC), `at` the same in ms, and the numbers of NUMBERS.

    Hours in which the broker had nothing to say of the client are left out. Empty when the job hasn't run yet.
    """
    name = instance or current_instance.instance_name()
    directory = Path(settings.SLUICE_LAKE_DIRECTORY) / "client_history"
    newest = sorted(directory.glob(f"day=*/{name}.parquet"), reverse=True)[:days]
    rows = [row for path in reversed(newest) for row in _hours_in(path, client)]
    return sorted(rows, key=lambda row: int(row["at"]))


def read_hours(path: Path) -> pa.Table:
    """Read a file's hours: client, transport, hour and NUMBERS.

    Empty when it can't be read: replaced or removed meanwhile, or no file of the lake's.
    """
    try:
        # A file at a time: given a directory, pyarrow would open its neighbours as well.
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
    mine = table.filter(pc.equal(table.column("client"), client))
    # On the page an hour is an hour, whichever transports it was on.
    whole = mine.group_by("hour").aggregate(
        [*((name, "sum") for name in SUMS), *((name, "max") for name in PEAKS)]
    )
    whole = whole.rename_columns(
        [name if name == "hour" else name.rpartition("_")[0] for name in whole.column_names]
    )
    micros = whole.column("hour").cast(pa.int64()).to_pylist()
    return [
        {**row, "hour": datetime.fromtimestamp(at / 1_000_000, UTC), "at": at // 1_000}
        for row, at in zip(whole.to_pylist(), micros, strict=True)
    ]
