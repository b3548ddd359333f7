"""Readiness check of the database: a small committed write, free disk space, and locks of other sessions."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from django.apps import apps
from django.db import Error, connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from broker_core.errors import OperatorError
from console.database_limits import database_error, set_limits
from console.models import WriteProbe

LOCK_TIMEOUT_S: Final = 1.5
"""Seconds that the probe waits for a lock."""
STATEMENT_TIMEOUT_S: Final = 2.5
"""Seconds that one statement of the probe may take."""
RESULT_S: Final = 2.0
"""Seconds for which a result is reused.

Each probe is a write, and `/readyz` needs no login.
"""
PROBE_BYTES: Final = 16 * 1024
"""Bytes of the probe's row: more than a page of either database, so that a full file system refuses it."""
MIN_FREE_BYTES: Final = 1024 * 1024
"""Minimum free bytes of the disk.

They come on top of the space that SQLite's log or PostgreSQL's table reserves for a probe.
"""
_SPILL: Final = "SELECT count(*) FROM generate_series(1, %s)"
"""Statement that writes a temporary file on PostgreSQL's disk, without a row, a lock or WAL."""
_SPILLED_ROW_BYTES: Final = 14
"""Bytes of one number of `_SPILL` in that file."""
LOCKED_AGAIN_S: Final = 0.2
"""Seconds after which a lock is checked again.

A lock that persists is not that of a vacuum or a quick migration.
"""
_LOCKED = """
    SELECT c.relname, a.pid, a.application_name FROM pg_locks l
    JOIN pg_class c ON c.oid = l.relation JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.granted AND l.pid <> pg_backend_pid() AND c.relname = ANY(%s)
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    ORDER BY c.relname LIMIT 1"""
"""SQL: first table that another session has locked against writes, with its process id and application."""
_guard = threading.Lock()
_last: tuple[float, OperatorError | None] | None = None
"""Monotonic time and result of the last probe."""


def database_problem() -> OperatorError | None:
    """Return the reason why the database can't be used; None if it can be read and written.

    Blocks for some seconds at most. Threads share one probe and its result for `RESULT_S`.
    """
    global _last
    if connection.in_atomic_block:
        return _probe()
    if not _guard.acquire(timeout=2 * STATEMENT_TIMEOUT_S):
        return OperatorError(
            "database_away",
            "The database doesn't answer.",
            "Check its process, its sessions and its locks.",
        )
    try:
        if _last is not None and time.monotonic() - _last[0] < RESULT_S:
            return _last[1]
        found = _probe()
        _last = time.monotonic(), found
        return found
    finally:
        _guard.release()


def reading_problem() -> OperatorError | None:
    """Return the reason why the database can't be read, or None when it can."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error as problem:
        return database_error(problem)
    return None


def _probe() -> OperatorError | None:
    """Check the database through a separate connection with short timeouts, which is closed afterwards."""
    if connection.in_atomic_block or _in_memory():
        return _full() or _examine(connection)
    probe_connection = connection.copy()
    if probe_connection.vendor == "sqlite":
        probe_connection.settings_dict["OPTIONS"]["timeout"] = LOCK_TIMEOUT_S
    try:
        set_limits(probe_connection, LOCK_TIMEOUT_S, STATEMENT_TIMEOUT_S)
        return _full() or _examine(probe_connection)
    except Error as problem:
        # A full disk causes various errors: SQLite may fail to create its log, or the log's index.
        return _full() or database_error(problem)
    finally:
        with suppress(Error):
            probe_connection.close()


def _examine(database: BaseDatabaseWrapper) -> OperatorError | None:
    """Replace the probe's row, commit, and check for locks. Raises Error."""
    table = database.ops.quote_name(WriteProbe._meta.db_table)
    before = database.get_autocommit()
    if before:
        database.set_autocommit(False)
    with database.cursor() as cursor:
        if database.vendor == "postgresql":
            cursor.execute("SET LOCAL work_mem = '64kB'")
            cursor.execute(_SPILL, [MIN_FREE_BYTES // _SPILLED_ROW_BYTES])
        cursor.execute(f"DELETE FROM {table}")
        row = [database.ops.adapt_datetimefield_value(timezone.now()), os.urandom(PROBE_BYTES)]
        cursor.execute(f"INSERT INTO {table} (at, filler) VALUES (%s, %s)", row)
    if before:
        database.commit()
        database.set_autocommit(True)
    return _locked(database)


def _in_memory() -> bool:
    """Return whether the database is an SQLite database without a file."""
    if connection.vendor != "sqlite":
        return False
    # SQLite's wrapper only
    return bool(connection.is_in_memory_db())  # type: ignore[attr-defined]  # of SQLite's wrapper only


def _full() -> OperatorError | None:
    """Return the error for an SQLite whose file system is full; None for any other database."""
    if connection.vendor != "sqlite" or _in_memory():
        return None
    directory = Path(str(connection.settings_dict["NAME"])).parent
    try:
        found = os.statvfs(directory)
    except OSError:
        return None  # opening the file will report the problem
    free = found.f_bavail * found.f_frsize
    if free >= MIN_FREE_BYTES:
        return None
    return OperatorError(
        "database_full", f"The database's disk has {free} bytes left.", f"Free disk space in {directory}."
    )


def _locked(database: BaseDatabaseWrapper) -> OperatorError | None:
    """Return the error for a table that another PostgreSQL session has locked.

    SQLite locks the whole file, which the probe's write detects.
    """
    if database.vendor != "postgresql" or _lock(database) is None:
        return None
    time.sleep(LOCKED_AGAIN_S)
    found = _lock(database)
    if found is None:
        return None
    table, pid, application = found
    return OperatorError(
        "database_locked",
        f"The table {table} is locked by the session {pid}{f' of {application}' if application else ''}.",
        f"End that session, for example with SELECT pg_terminate_backend({pid}).",
    )


def _lock(database: BaseDatabaseWrapper) -> tuple[Any, ...] | None:
    tables = [model._meta.db_table for model in apps.get_models()]
    with database.cursor() as cursor:
        cursor.execute(_LOCKED, [tables])
        found: tuple[Any, ...] | None = cursor.fetchone()
        return found
