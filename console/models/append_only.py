"""Database triggers that protect the audit log: they refuse every UPDATE, and every DELETE before
`expires_at`.

They are created after each migration rather than in one. On SQLite, Django changes a table by creating a
new one, which has no triggers.
"""

from __future__ import annotations

from typing import Any

from django.db import connections

TABLE = "console_auditevent"
"""Table of audit events."""

SQLITE = (
    f"DROP TRIGGER IF EXISTS {TABLE}_no_update",
    f"DROP TRIGGER IF EXISTS {TABLE}_no_delete",
    f"CREATE TRIGGER {TABLE}_no_update BEFORE UPDATE ON {TABLE} "
    "BEGIN SELECT RAISE(ABORT, 'audit events are append-only'); END",
    f"CREATE TRIGGER {TABLE}_no_delete BEFORE DELETE ON {TABLE} "
    "WHEN OLD.expires_at IS NULL OR OLD.expires_at > datetime('now') "
    "BEGIN SELECT RAISE(ABORT, 'audit events are append-only'); END",
)
"""Statements that create the triggers on SQLite."""
POSTGRESQL = (
    f"""CREATE OR REPLACE FUNCTION {TABLE}_keep() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF TG_OP = 'DELETE' AND OLD.expires_at <= now() THEN RETURN OLD; END IF;
      RAISE EXCEPTION 'audit events are append-only' USING ERRCODE = 'integrity_constraint_violation';
    END $$""",
    f"CREATE OR REPLACE TRIGGER {TABLE}_keep BEFORE UPDATE OR DELETE ON {TABLE} "
    f"FOR EACH ROW EXECUTE FUNCTION {TABLE}_keep()",
)
"""Statements that create the trigger on PostgreSQL."""
STATEMENTS = {"sqlite": SQLITE, "postgresql": POSTGRESQL}
"""Statements by database vendor."""


def install_triggers(using: str = "default", **kwargs: Any) -> None:
    """Create or replace the triggers.

    Does nothing before the table exists, or on another kind of database.
    """
    connection = connections[using]
    if TABLE not in connection.introspection.table_names():
        return
    with connection.cursor() as cursor:
        for statement in STATEMENTS.get(connection.vendor, ()):
            cursor.execute(statement)
