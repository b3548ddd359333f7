"""Rows of the clients that somebody may see: name patterns as SQL, the same on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import CharField, Lookup, Q, QuerySet


@CharField.register_lookup
class GlobLookup(Lookup):
    """`client__glob="desk-*"`: `*` stands for any run of characters; case matters. For names, which have no other signs."""

    lookup_name = "glob"

    def as_sqlite(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """GLOB, with the same sign."""
        return self._compare("GLOB", self.rhs, compiler, connection)

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """LIKE, whose signs are % and _."""
        return self._compare(
            "LIKE", str(self.rhs).replace("_", r"\_").replace("*", "%"), compiler, connection
        )

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """Any other database has LIKE."""
        return self.as_postgresql(compiler, connection)

    def _compare(
        self, operator: str, pattern: Any, compiler: Any, connection: Any
    ) -> tuple[str, tuple[Any, ...]]:
        left, parameters = self.process_lhs(compiler, connection)
        return f"{left} {operator} %s", (*parameters, pattern)


def visible_rows(rows: QuerySet[Any], patterns: Sequence[str] | None, field: str = "client") -> QuerySet[Any]:
    """The rows whose client's name fits one of the patterns; None is all rows, an empty list is none."""
    if patterns is None:
        return rows
    fits = Q(pk__in=[])
    for pattern in patterns:
        fits |= Q(**{f"{field}__glob": pattern})
    return rows.filter(fits)
