"""Lists as CSV: `?format=csv` or `Accept: text/csv`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from rest_framework.renderers import BaseRenderer

MAX_ROWS = 100_000
"""Rows of one CSV answer; narrow the filter for more."""
# A cell that begins so is a formula to spreadsheets, and names and reasons come from outside.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


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
            to_csv(data).encode() or b"\r\n"
        )  # DRF takes an empty body for no answer, and leaves its kind out


def to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows, with the columns of the first."""
    text = io.StringIO()
    writer: Any = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(text, list(row), extrasaction="ignore", restval="")
            writer.writeheader()
        writer.writerow({key: cell(value) for key, value in row.items()})
    return text.getvalue()


def cell(value: Any) -> Any:
    """One value: None is empty, nested ones are JSON, texts that a spreadsheet would run are quoted."""
    if value is None or isinstance(value, bool | int | float):
        return "" if value is None else value
    if isinstance(value, dict | list | tuple):
        return orjson.dumps(value, default=str).decode()
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
