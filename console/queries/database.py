"""Readiness of the database: a small write that is committed, and the locks that other sessions hold."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.db import Error, connection, transaction
from django.utils import timezone

from broker_core.errors import OperatorError
from console.database_limits import database_error, set_limits
from console.models import WriteProbe

LOCK_TIMEOUT_S: Final = 1.5
STATEMENT_TIMEOUT_S: Final = 2.5
RESULT_S: Final = 2.0
"""How long a result is given again: anybody may ask `/readyz`, and each probe is a write."""
PROBE_BYTES: Final = 16 * 1024
"""More than a page of either database, so that a file system without room refuses it."""
LEAST_FREE_BYTES: Final = 1024 * 1024
"""Of SQLite's file system: its log may have room of before for a probe, and none for anything else."""
LOCKED_AGAIN_S: Final = 0.2
"""A lock that is still there after this time isn't one of a vacuum or of a quick migration."""
_LOCKED = """
    SELECT c.relname, a.pid, a.application_name FROM pg_locks l
    JOIN pg_class c ON c.oid = l.relation JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.granted AND l.pid <> pg_backend_pid() AND c.relname = ANY(%s)
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    ORDER BY c.relname LIMIT 1"""
_guard = threading.Lock()
_last: tuple[float, OperatorError | None] | None = None


def database_problem() -> OperatorError | None:
    """Return why the database can't be used; None when it can be read and written. Takes seconds at most."""
    global _last
    if connection.in_atomic_block:
        return _probe()
    if not _guard.acquire(timeout=2 * STATEMENT_TIMEOUT_S):
        return OperatorError(
            "database_away",
            "The database doesn't answer.",
            "Look at its process, its sessions and its locks.",
        )
    try:
        if _last is not None and time.monotonic() - _last[0] < RESULT_S:
            return _last[1]
        found = _probe()
        _last = time.monotonic(), found
        return found
    finally:
        _guard.release()


def forget_result() -> None:
    """Ask the database again the next time."""
    global _last
    _last = None


def _probe() -> OperatorError | None:
    try:
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        connection.ensure_connection()
        before = _limits()
        set_limits(connection, LOCK_TIMEOUT_S, STATEMENT_TIMEOUT_S)
        try:
            _write()
            return _full() or _locked()
        finally:
            with suppress(Error):
                _restore(before)
    except Error as problem:
        # A full disk shows itself in many ways: SQLite can't make its log, or its index of that.
        return _full() or database_error(problem)


def _write() -> None:
    """Write a row in place of the one before, and commit."""
    with transaction.atomic():
        before = list(WriteProbe.objects.values_list("pk", flat=True))
        WriteProbe.objects.create(at=timezone.now(), filler=os.urandom(PROBE_BYTES))
        WriteProbe.objects.filter(pk__in=before).delete()


def _full() -> OperatorError | None:
    if connection.vendor != "sqlite":
        return None
    name = str(connection.settings_dict["NAME"])
    place = Path(name.removeprefix("file:").partition("?")[0])
    if "memory" in name or not place.parent.is_dir():
        return None
    found = os.statvfs(place.parent)
    free = found.f_bavail * found.f_frsize
    if free >= LEAST_FREE_BYTES:
        return None
    return OperatorError(
        "database_full",
        f"The database's disk has {free} bytes left.",
        f"Free disk space where {settings.DATABASES['default']['NAME']} is.",
    )


def _locked() -> OperatorError | None:
    """Return the error for a table that another session of PostgreSQL has locked.

    SQLite locks the whole file, which the write finds.
    """
    if connection.vendor != "postgresql" or _lock() is None:
        return None
    time.sleep(LOCKED_AGAIN_S)
    found = _lock()
    if found is None:
        return None
    table, pid, application = found
    return OperatorError(
        "database_locked",
        f"The table {table} is locked by the session {pid}{f' of {application}' if application else ''}.",
        f"End that session, for example with SELECT pg_terminate_backend({pid}).",
    )


def _lock() -> tuple[Any, ...] | None:
    tables = [model._meta.db_table for model in apps.get_models()]
    with connection.cursor() as cursor:
        cursor.execute(_LOCKED, [tables])
        found: tuple[Any, ...] | None = cursor.fetchone()
        return found


def _limits() -> list[str]:
    """Return the session's own limits, to be restored."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT current_setting('lock_timeout'), current_setting('statement_timeout')")
        else:
            cursor.execute("PRAGMA busy_timeout")
        return [str(value) for value in cursor.fetchone()]


def _restore(before: list[str]) -> None:
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', %s, false)",
                before,
            )
        else:
            cursor.execute(f"PRAGMA busy_timeout = {int(before[0])}")
