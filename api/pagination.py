"""Pages of lists. Rows of the database come by cursor, which neither skips nor repeats a row when new ones arrive
meanwhile, and costs the same on page 1,000 as on page 1; what a broker lists comes by page number, with a count."""

from __future__ import annotations

from typing import Any

from django.db.models import F, OrderBy, QuerySet
from rest_framework.pagination import BasePagination, CursorPagination, PageNumberPagination
from rest_framework.response import Response

from api.document_serializers import to_plain

PAGE_SIZE = 100
MAX_PAGE_SIZE = 1_000


class NumberedPagination(PageNumberPagination):
    """`?page=2&page_size=100`: 100 rows a page, up to 1,000."""

    page_size = PAGE_SIZE
    page_size_query_param = "page_size"
    max_page_size = MAX_PAGE_SIZE

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """One page, for the document."""
        return _page_schema(schema, {"count": {"type": "integer"}})


class RowCursorPagination(CursorPagination):
    """`?cursor=…&page_size=100`, in the order of the query set; `next` and `previous` are whole addresses."""

    page_size = PAGE_SIZE
    page_size_query_param = "page_size"
    max_page_size = MAX_PAGE_SIZE

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """One page, for the document."""
        return _page_schema(schema, {})

    def get_ordering(self, request: Any, queryset: QuerySet[Any], view: Any) -> tuple[str, ...]:
        """The query set's own order, with the key last, so that it is one order only."""
        asked = queryset.query.order_by or queryset.model._meta.ordering
        names = [_name(one) for one in asked]
        down = bool(names) and names[0].startswith("-")
        bare = [name.lstrip("-") for name in names]
        return tuple(names) if {"pk", "id"} & set(bare) else (*names, "-pk" if down else "pk")


class _MembersPagination(BasePagination):
    """Pages of what every member of a group says; `missing` has those whose part isn't in it."""

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> Any:
        """The page; the view knows who couldn't be asked."""
        self._view = view
        return super().paginate_queryset(queryset, request, view)

    def get_paginated_response(self, data: Any) -> Response:
        """With them."""
        made = super().get_paginated_response(data)
        made.data["missing"] = to_plain(self._view.missing())
        return made

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """One page, for the document."""
        found = super().get_paginated_response_schema(schema)
        missing = {
            "type": "array",
            "items": {"$ref": "#/components/schemas/MissingMember"},
            "description": "Of a group: members whose part isn't in the answer.",
        }
        return {
            **found,
            "required": [*found["required"], "missing"],
            "properties": {**found["properties"], "missing": missing},
        }


class MembersNumberedPagination(_MembersPagination, NumberedPagination):
    """By number: what members are asked for."""


class MembersCursorPagination(_MembersPagination, RowCursorPagination):
    """By cursor: what members have stored."""


def _page_schema(rows: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    address = {
        "type": ["string", "null"],
        "format": "uri",
        "description": "A whole address; null at the end.",
    }
    properties = {**more, "next": address, "previous": address, "results": rows}
    return {"type": "object", "required": list(properties), "properties": properties}


def _name(ordering: Any) -> str:
    if isinstance(ordering, OrderBy) and isinstance(ordering.expression, F):
        name: str = ordering.expression.name  # type: ignore[attr-defined]  # missing in the stubs
        return f"-{name}" if ordering.descending else name
    return str(ordering)
