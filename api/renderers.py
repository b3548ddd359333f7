"""CSV renderer of lists: `?format=csv` or `Accept: text/csv`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import orjson
from rest_framework.renderers import BaseRenderer

from broker_core.safe_text import to_csv

MAX_ROWS = 100_000
"""Maximum rows of a CSV answer. Narrow the filter to get the others."""


class CsvRenderer(BaseRenderer):
    """Renderer of the whole filtered list as CSV, with a header row.

    Nested values are JSON. Pagination does not apply.
    """

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None
    ) -> bytes:
        """Return rows as CSV, or a problem document as JSON."""
        if not isinstance(data, list):
            return orjson.dumps(data, default=str)
        return (
            rows_to_csv(data).encode() or b"\r\n"
        )  # DRF treats an empty body as no content and omits the content type


def rows_to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV text. The first row's keys are the columns."""
    listed = iter(rows)
    first = next(listed, None)
    if first is None:
        return ""
    columns = list(first)
    cells = ([row.get(column, "") for column in columns] for row in chain((first,), listed))
    return to_csv(chain((columns,), cells))
