"""Lists: pagination, filters and CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.db.models import QuerySet
from django_filters import FilterSet, IsoDateTimeFilter, NumberFilter
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.pagination import BasePagination
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from api.document_serializers import to_plain
from api.pagination import RowCursorPagination
from api.renderers import MAX_ROWS, CsvRenderer
from api.views.view import ApiView


class PagedView(ApiView):
    """View that returns a list: a query set by cursor, other sequences by page number, either as CSV on
    request.
    """

    renderer_classes = [JSONRenderer, CsvRenderer]
    pagination_class: type[BasePagination] = RowCursorPagination
    """Pagination in the OpenAPI document. Use `NumberedPagination` for lists that a broker provides."""

    def page(
        self,
        rows: Any,
        serializer: type[serializers.BaseSerializer[Any]] | None = None,
        columns: Sequence[str] | None = None,
        visible: Callable[[Any], Any] | None = None,
    ) -> Response:
        """Return one page of rows, or all rows (at most `MAX_ROWS`) when the request accepts CSV.

        Args:
            rows: Query set or sequence. Without `serializer` its items are documents.
            columns: Columns of the CSV; None means all.
            visible: Function that returns a row as the caller may see it; None means unchanged.
        """
        if self.request.accepted_renderer.format == CsvRenderer.format:
            part = rows[:MAX_ROWS] if visible is None else [visible(one) for one in rows[:MAX_ROWS]]
            made = (
                list(serializer(part, many=True, context={"request": self.request}).data)
                if serializer
                else to_plain(part)
            )
            return Response(made if columns is None else [{key: row[key] for key in columns} for row in made])
        pages = self.pagination_class()
        page: list[Any] | None = pages.paginate_queryset(rows, self.request, view=self)
        if visible is not None:
            page = [visible(one) for one in page or ()]
        return pages.get_paginated_response(
            serializer(page, many=True, context={"request": self.request}).data
            if serializer
            else to_plain(page or ())
        )


def filtered(filters: type[FilterSet], request: Request, rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return the rows that match the query parameters. Raises DRF's ValidationError.

    The console's page uses the same filters.
    """
    filter_set = filters(request.query_params, rows)
    if not filter_set.is_valid():
        raise ValidationError(filter_set.errors)
    found: QuerySet[Any] = filter_set.qs
    return found


def filter_parameters(filters: type[FilterSet]) -> list[OpenApiParameter]:
    """Return a filter set's filters as parameters for the OpenAPI document."""
    kinds = {IsoDateTimeFilter: OpenApiTypes.DATETIME, NumberFilter: OpenApiTypes.INT}
    return [
        OpenApiParameter(
            name,
            kinds.get(type(one), OpenApiTypes.STR),
            enum=[str(key) for key, _ in one.extra.get("choices", ())] or None,
        )
        for name, one in filters.base_filters.items()
    ]
