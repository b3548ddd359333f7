"""Restriction of rows to visible clients, by name patterns in SQL that works on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import CharField, Lookup, Q, QuerySet


@CharField.register_lookup
class GlobLookup(Lookup):
    """Lookup `client__glob="desk-*"`, in which `*` matches any run of characters.

    The match is case-sensitive. Client names contain no other wildcard characters.
    """

    lookup_name = "glob"

    def as_sqlite(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """Return the SQL for SQLite: GLOB with the same pattern."""
        return self._compare("GLOB", self.rhs, compiler, connection)

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """Return the SQL for PostgreSQL: LIKE, with `_` escaped and `*` replaced by `%`."""
        return self._compare(
            "LIKE", str(self.rhs).replace("_", r"\_").replace("*", "%"), compiler, connection
        )

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """Return the SQL for any other database: LIKE."""
        return self.as_postgresql(compiler, connection)

    def _compare(
        self, operator: str, pattern: Any, compiler: Any, connection: Any
    ) -> tuple[str, tuple[Any, ...]]:
        lhs, parameters = self.process_lhs(compiler, connection)
        return f"{lhs} {operator} %s", (*parameters, pattern)


def visible_rows(rows: QuerySet[Any], patterns: Sequence[str] | None, field: str = "client") -> QuerySet[Any]:
    """Return the rows whose client name matches a pattern.

    `patterns` None means all rows; an empty list means no rows. `field` names the column.
    """
    if patterns is None:
        return rows
    fits = Q(pk__in=[])
    for pattern in patterns:
        fits |= Q(**{f"{field}__glob": pattern})
    return rows.filter(fits)
