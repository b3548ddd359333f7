"""Pagination of lists, by cursor for database rows and by page number for brokers' lists.

A cursor neither skips nor repeats a row when new rows arrive, and page 1,000 costs the same as page 1. Page
numbers come with a total count.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from django.db.models import F, OrderBy, QuerySet
from rest_framework.exceptions import ValidationError
from rest_framework.pagination import BasePagination, CursorPagination, PageNumberPagination
from rest_framework.response import Response

from api.document_serializers import to_plain

PAGE_SIZE = 100
"""Default rows per page."""
MAX_PAGE_SIZE = 1_000
"""Maximum rows per page."""


class NumberedPagination(PageNumberPagination):
    """Pagination by number, `?page=2&page_size=100`: 100 rows per page by default, at most 1,000."""

    page_size = PAGE_SIZE
    page_size_query_param = "page_size"
    max_page_size = MAX_PAGE_SIZE

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the OpenAPI schema of one page."""
        return _page_schema(schema, {"count": {"type": "integer"}})


class RowCursorPagination(CursorPagination):
    """Pagination by cursor, `?cursor=…&page_size=100`, in the query set's order.

    `next` and `previous` are complete URLs.
    """

    page_size = PAGE_SIZE
    page_size_query_param = "page_size"
    max_page_size = MAX_PAGE_SIZE

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> Any:
        """Return one page of rows. Raises NotFound or ValidationError for a malformed cursor."""
        try:
            return super().paginate_queryset(queryset, request, view)
        except (DjangoValidationError, ValueError, OverflowError):
            raise ValidationError({"cursor": "This isn't a cursor of this list."}) from None

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the OpenAPI schema of one page."""
        return _page_schema(schema, {})

    def get_ordering(self, request: Any, queryset: QuerySet[Any], view: Any) -> tuple[str, ...]:
        """Return the query set's ordering, with the primary key last so that the order is total."""
        ordering = queryset.query.order_by or queryset.model._meta.ordering
        names = [_name(one) for one in ordering]
        down = bool(names) and names[0].startswith("-")
        bare = [name.lstrip("-") for name in names]
        return tuple(names) if {"pk", "id"} & set(bare) else (*names, "-pk" if down else "pk")


class _MembersPagination(BasePagination):
    """Pagination of a group's data. `missing` lists the members whose part the page lacks."""

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> Any:
        """Return one page of rows, and remember the view, which knows the missing members."""
        self._view = view
        return super().paginate_queryset(queryset, request, view)

    def get_paginated_response(self, data: Any) -> Response:
        """Return the response with `missing` added."""
        made = super().get_paginated_response(data)
        made.data["missing"] = to_plain(self._view.missing())
        return made

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the OpenAPI schema of one page, with `missing`."""
        found = super().get_paginated_response_schema(schema)
        missing = {
            "type": "array",
            "items": {"$ref": "#/components/schemas/MissingMember"},
            "description": "Members of the group that are missing in the response.",
        }
        return {
            **found,
            "required": [*found["required"], "missing"],
            "properties": {**found["properties"], "missing": missing},
        }


class MembersNumberedPagination(_MembersPagination, NumberedPagination):
    """Pagination by number of data that the members are asked for."""


class MembersCursorPagination(_MembersPagination, RowCursorPagination):
    """Pagination by cursor of data that the members have stored."""


def _page_schema(rows: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    address = {
        "type": ["string", "null"],
        "format": "uri",
        "description": "Absolute URL; null at the end.",
    }
    properties = {**more, "next": address, "previous": address, "results": rows}
    return {"type": "object", "required": list(properties), "properties": properties}


def _name(ordering: Any) -> str:
    if isinstance(ordering, OrderBy) and isinstance(ordering.expression, F):
        name: str = ordering.expression.name  # type: ignore[attr-defined]  # missing in the stubs
        return f"-{name}" if ordering.descending else name
    return str(ordering)
