"""What the pipeline's client-history job wrote about a client, hour by hour: SLUICE_LAKE_DIRECTORY/client_history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings

DAYS = 14
_COLUMNS = ["client", "hour", "lag_messages_max", "lag_ms_max", "lag_bytes_max", "offline_episodes", "offline_ms"]


def client_hours(client: str, now: datetime, days: int = DAYS, instance_name: str | None = None) -> list[dict[str, Any]]:
    """A client's hours of the last days, oldest first, `at` in ms. Empty where the job has not run or saw none of it.

    A file that can't be read is left out: the job makes it anew, and a page must not fail for it.
    """
    instance = instance_name or settings.SLUICE_INSTANCE
    oldest = (now.astimezone(UTC) - timedelta(days=days)).strftime("day=%Y-%m-%d")
    folder = Path(settings.SLUICE_LAKE_DIRECTORY) / "client_history"
    files = sorted(path for path in folder.glob(f"day=*/{instance}.parquet") if path.parent.name >= oldest)
    hours = [_hour(row) for path in files for row in _rows(path, client)]
    return sorted(hours, key=lambda hour: hour["at"])


def _rows(path: Path, client: str) -> list[dict[str, Any]]:
    # Loading Arrow takes a web process a third of a second and 60 MB; only those pay for it that show these pages.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=_COLUMNS, filters=[("client", "=", client)], partitioning=None)
    except (pa.ArrowException, OSError):
        return []
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _hour(row: dict[str, Any]) -> dict[str, Any]:
    moment = row["hour"] if row["hour"].tzinfo else row["hour"].replace(tzinfo=UTC)
    return {
        "at": int(moment.timestamp() * 1000),
        "lag_messages": row["lag_messages_max"],
        "lag_ms": row["lag_ms_max"],
        "lag_bytes": row["lag_bytes_max"],
        "episodes": row["offline_episodes"],
        "offline_ms": row["offline_ms"],
    }
