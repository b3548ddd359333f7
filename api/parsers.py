"""JSON bodies, of so many levels and no more."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

MOST_LEVELS = 64
"""Of objects and lists within each other: far more than a policy has, far less than what recursion takes."""


class BoundedJSONParser(JSONParser):
    """DRF's. Raises ParseError for what is nested deeper, too."""

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        """The body's value."""
        try:
            made = super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise _too_deep() from None
        level, inner = 0, [made]
        while inner := [child for one in inner for child in _children(one)]:
            level += 1
            if level > MOST_LEVELS:
                raise _too_deep()
        return made


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _too_deep() -> ParseError:
    return ParseError(f"Objects and lists within each other have up to {MOST_LEVELS} levels.")
