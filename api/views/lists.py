"""Lists: pages, filters and CSV."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django_filters import FilterSet, IsoDateTimeFilter, NumberFilter
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from api.pagination import CursorPages, Pages
from api.renderers import MAX_ROWS, CsvRenderer


class PagedView(APIView):
    """A view that answers a list: a query set by cursor, anything else by page number, either as CSV when asked."""

    renderer_classes = [JSONRenderer, CsvRenderer]

    def page(self, rows: Any, serializer: type[serializers.BaseSerializer[Any]] | None = None) -> Response:
        """One page, or the whole list as CSV; rows that are JSON already are answered as they are."""
        if self.request.accepted_renderer.format == CsvRenderer.format:
            part = rows[:MAX_ROWS]
            return Response(list(serializer(part, many=True).data) if serializer else list(part))
        pages = CursorPages() if isinstance(rows, QuerySet) else Pages()
        page = pages.paginate_queryset(rows, self.request, view=self)
        return pages.get_paginated_response(serializer(page, many=True).data if serializer else page)


def filtered(filters: type[FilterSet], request: Request, rows: QuerySet[Any]) -> QuerySet[Any]:
    """The rows that fit the query, by the same filters as the console's page. Raises DRF's ValidationError."""
    asked = filters(request.query_params, rows)
    if not asked.is_valid():
        raise ValidationError(asked.errors)
    return asked.qs


def query_of(filters: type[FilterSet]) -> list[OpenApiParameter]:
    """The filters as parameters of the OpenAPI document."""
    kinds = {IsoDateTimeFilter: OpenApiTypes.DATETIME, NumberFilter: OpenApiTypes.INT}
    return [
        OpenApiParameter(
            name, kinds.get(type(one), OpenApiTypes.STR), enum=[str(key) for key, _ in one.extra.get("choices", ())] or None
        )
        for name, one in filters.base_filters.items()
    ]
