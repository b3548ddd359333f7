"""JSON parser of request bodies with a limit on nesting."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

MAX_LEVELS = 64
"""Maximum nesting of objects and lists.

Policies need far fewer levels; Python's recursion limit allows far more.
"""


class BoundedJSONParser(JSONParser):
    """JSON parser of DRF that raises ParseError for a value nested deeper than `MAX_LEVELS`."""

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        """Return the value of a request's body. Raises ParseError."""
        try:
            made = super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise _too_deep() from None
        level, inner = 0, [made]
        while inner := [child for one in inner for child in _children(one)]:
            level += 1
            if level > MAX_LEVELS:
                raise _too_deep()
        return made


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _too_deep() -> ParseError:
    return ParseError(f"Objects and lists can be nested to at most {MAX_LEVELS} levels.")
