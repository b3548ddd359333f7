"""Limits on the time that a process waits for the database: for a lock, and for one statement."""

from __future__ import annotations

from typing import Any, Final

from django.db import DatabaseError, connections
from django.db.backends.signals import connection_created

from broker_core.errors import OperatorError

LOCK_TIMEOUT_S: Final = 4
"""Maximum seconds to wait for a lock."""
STATEMENT_TIMEOUT_S: Final = 30
"""Maximum seconds of one statement."""
_UID: Final = "sluice-database-limits"


def limit_waits(*, statements: bool = True) -> None:
    """Limit the waits of every connection that this process opens from now on.

    A locked table then raises an error after LOCK_TIMEOUT_S. With `statements=False`, as for migrations,
    statements have no limit. A later call of this function or `limit_lock_waits` replaces the limits.
    """
    for database in connections.settings.values():
        if database["ENGINE"] == "django.db.backends.sqlite3":
            # Opening a connection may wait for a lock: switching to the write-ahead log needs one.
            database.setdefault("OPTIONS", {})["timeout"] = LOCK_TIMEOUT_S
    _limit_new_connections(STATEMENT_TIMEOUT_S if statements else 0)


def limit_lock_waits() -> None:
    """Limit the waits for locks of PostgreSQL, for connections that this process opens from now on.

    The limit of SQLite is in the settings. A later call of this function or `limit_waits` replaces the
    limits.
    """
    _limit_new_connections(0)


def _limit_new_connections(statement_s: float) -> None:
    """Limit new connections to LOCK_TIMEOUT_S and `statement_s`; 0 means no limit."""

    def limit_connection(connection: Any, **_: Any) -> None:
        set_limits(connection, LOCK_TIMEOUT_S, statement_s)

    # Django ignores a second receiver with the same uid, so the first one must be removed.
    connection_created.disconnect(dispatch_uid=_UID)
    connection_created.connect(limit_connection, weak=False, dispatch_uid=_UID)


def set_limits(connection: Any, lock_s: float, statement_s: float) -> None:
    """Limit the waits of an open PostgreSQL connection; 0 means no limit. Does nothing for other databases.

    SQLite has `timeout` in its settings. Raises DatabaseError.
    """
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        # Not with the connection's `options`: PgBouncer refuses connections that have them.
        cursor.execute(
            "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', %s, false)",
            [f"{int(lock_s * 1_000)}ms", f"{int(statement_s * 1_000)}ms"],
        )


def database_error(problem: BaseException) -> OperatorError:
    """Return the OperatorError for an exception of the database driver."""
    text = _first_line(problem)
    words, state = text.lower(), _sqlstate(problem)
    if state == "55P03" or "lock timeout" in words or "is locked" in words:
        return OperatorError(
            "database_locked", f"The database is locked: {text}.", "End the session that holds the lock."
        )
    if state == "25006" or "read-only" in words or "readonly" in words:
        return OperatorError(
            "database_read_only",
            f"The database can't be written: {text}.",
            "Point DATABASE_URL at the primary, or set default_transaction_read_only to off; make SQLite's"
            " file and directory writable.",
        )
    if state in ("53100", "53200") or "is full" in words or "no space left" in words:
        return OperatorError(
            "database_full", f"The database has no room: {text}.", "Free disk space where the database is."
        )
    if "no such table" in words or state == "42P01":
        return OperatorError(
            "database_away", f"The database lacks a table: {text}.", "Run `manage.py migrate`."
        )
    return OperatorError(
        "database_away",
        f"The database doesn't answer: {text or type(problem).__name__}.",
        "Start the database, or correct DATABASE_URL.",
    )


def _first_line(problem: BaseException) -> str:
    """Return a driver's message, without the statement that PostgreSQL quotes from the second line on."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return " ".join(lines if not any(line.startswith("LINE ") for line in lines) else lines[:1]).rstrip(".")


def _sqlstate(problem: BaseException) -> str:
    """Return PostgreSQL's five-character SQLSTATE; "" if there is none."""
    cause = problem.__cause__ if isinstance(problem, DatabaseError) else problem
    return str(getattr(cause, "sqlstate", None) or "")
