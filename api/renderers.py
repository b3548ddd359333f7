"""Lists as CSV: `?format=csv` or `Accept: text/csv`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import orjson
from rest_framework.renderers import BaseRenderer

from broker_core.safe_text import to_csv

MAX_ROWS = 100_000
"""Rows of one CSV answer; narrow the filter for more."""


class CsvRenderer(BaseRenderer):
    """The whole filtered list, not one page: the first line names the columns, nested values are JSON."""

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None
    ) -> bytes:
        """Rows as CSV; an error as its own JSON."""
        if not isinstance(data, list):
            return orjson.dumps(data, default=str)
        return (
            rows_to_csv(data).encode() or b"\r\n"
        )  # DRF takes an empty body for no answer, and leaves its kind out


def rows_to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the rows as CSV, with the columns of the first."""
    listed = iter(rows)
    first = next(listed, None)
    if first is None:
        return ""
    columns = list(first)
    cells = ([row.get(column, "") for column in columns] for row in chain((first,), listed))
    return to_csv(chain((columns,), cells))
