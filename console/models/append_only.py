"""Makes the database itself keep the audit: triggers that refuse every UPDATE, and every DELETE before `expires_at`.

They are made after each migration rather than in one: on SQLite, Django changes a table by making a new one, which has none.
"""

from __future__ import annotations

from typing import Any

from django.db import connections

TABLE = "console_auditevent"

SQLITE = (
    f"DROP TRIGGER IF EXISTS {TABLE}_no_update",
    f"DROP TRIGGER IF EXISTS {TABLE}_no_delete",
    f"CREATE TRIGGER {TABLE}_no_update BEFORE UPDATE ON {TABLE} "
    "BEGIN SELECT RAISE(ABORT, 'audit events are append-only'); END",
    f"CREATE TRIGGER {TABLE}_no_delete BEFORE DELETE ON {TABLE} "
    "WHEN OLD.expires_at IS NULL OR OLD.expires_at > datetime('now') "
    "BEGIN SELECT RAISE(ABORT, 'audit events are append-only'); END",
)
POSTGRESQL = (
    f"""CREATE OR REPLACE FUNCTION {TABLE}_keep() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF TG_OP = 'DELETE' AND OLD.expires_at <= now() THEN RETURN OLD; END IF;
      RAISE EXCEPTION 'audit events are append-only' USING ERRCODE = 'integrity_constraint_violation';
    END $$""",
    f"CREATE OR REPLACE TRIGGER {TABLE}_keep BEFORE UPDATE OR DELETE ON {TABLE} "
    f"FOR EACH ROW EXECUTE FUNCTION {TABLE}_keep()",
)
STATEMENTS = {"sqlite": SQLITE, "postgresql": POSTGRESQL}


def install_triggers(using: str = "default", **kwargs: Any) -> None:
    """Make the triggers, or make them again. Does nothing before the table is there, or on another kind of database."""
    connection = connections[using]
    if TABLE not in connection.introspection.table_names():
        return
    with connection.cursor() as cursor:
        for statement in STATEMENTS.get(connection.vendor, ()):
            cursor.execute(statement)
