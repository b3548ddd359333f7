"""Import of hourly client history from the lake into the database, for ranges older than the stored minutes.

The pipeline's job `client-history` writes one Parquet file per day and instance. The files are
authoritative. A file is read again when its stamp (modification time, size, inode) differs from the
imported one. Limits: the `MAX_CLIENTS` worst clients of each hour, `MAX_FILES` files per instance and call.
Files past the retention are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from django.conf import settings
from django.db import transaction

from console.models import ClientHour, ImportedLakeFile, Instance
from console.queries.pipeline_history import read_hours

MAX_FILES = 4
"""Maximum files that one call imports per instance. Each file covers one day; the next call continues."""
MAX_CLIENTS = 1_000
"""Maximum clients stored per hour, the worst first."""
_SAME = (
    "connected_ms",
    "lag_messages_mean",
    "delivered_messages",
    "delivered_bytes",
    "rate_max",
    "offline_episodes",
    "offline_ms",
)
_PEAKS = ("lag_messages", "lag_bytes", "lag_ms", "outbox_bytes", "spool_bytes")
_ACTS = ("warned", "offlined", "disconnected", "other_acts")


def import_new_hours(now: datetime) -> int:
    """Import new or changed files, newest day first, and return the number of rows written. Idempotent."""
    oldest = f"day={(now - timedelta(days=settings.SLUICE_HOUR_RETENTION_DAYS)).date().isoformat()}"
    shelf, imported = Path(settings.SLUICE_LAKE_DIRECTORY) / "client_history", 0
    for instance in Instance.objects.all():
        known = dict(ImportedLakeFile.objects.filter(instance=instance).values_list("name", "stamp"))
        files = [path for path in shelf.glob(f"day=*/{instance.name}.parquet") if path.parent.name >= oldest]
        ImportedLakeFile.objects.filter(instance=instance, name__lt=oldest).delete()
        remaining = MAX_FILES
        for path in sorted(files, reverse=True):
            name, stamp = path.parent.name, _stamp(path)
            if remaining and stamp and known.get(name) != stamp:
                imported += _take(instance, path, stamp)
                remaining -= 1
    return imported


def _stamp(path: Path) -> str:
    """Return a file's version, or "" when the file doesn't exist.

    Call it before reading the file, so that a replacement during the read causes another import.
    """
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_mtime_ns}.{found.st_size}.{found.st_ino}"


def _take(instance: Instance, path: Path, stamp: str) -> int:
    """Import one file in place of its earlier rows, and return the number of rows."""
    table, made = read_hours(path), 0
    for at, rows in _by_hour(table):
        fresh = [_row(instance, at, row) for row in rows]
        # One transaction per hour keeps the time short during which other writers wait.
        with transaction.atomic():
            ClientHour.objects.filter(instance=instance, at=at).delete()
            ClientHour.objects.bulk_create(fresh, batch_size=500, ignore_conflicts=True)
        made += len(fresh)
    ImportedLakeFile.objects.update_or_create(
        instance=instance, name=path.parent.name, defaults={"stamp": stamp}
    )
    return made


def _by_hour(table: pa.Table) -> Iterator[tuple[datetime, list[dict[str, Any]]]]:
    """Yield each hour of a table with its worst clients, at most `MAX_CLIENTS`."""
    if not table.num_rows:
        return
    worst = [("offline_ms", "descending"), ("lag_ms_max", "descending"), ("delivered_messages", "descending")]
    for hour in table.column("hour").unique():
        rows = table.filter(pc.equal(table.column("hour"), hour)).sort_by(worst).slice(0, MAX_CLIENTS)
        yield datetime.fromtimestamp(hour.cast(pa.int64()).as_py() / 1e6, UTC), rows.to_pylist()


def _row(instance: Instance, at: datetime, row: dict[str, Any]) -> ClientHour:
    return ClientHour(
        instance=instance,
        client=row["client"][:64],
        at=at,
        transport=row["transport"][:64],
        state="offlined" if row["offline_ms"] else "live",
        acts=sum(row[name] for name in _ACTS),
        **{name: row[name] for name in _SAME},
        **{name: row[f"{name}_max"] for name in _PEAKS},
    )
