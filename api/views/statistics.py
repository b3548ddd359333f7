"""View of statistics over time of a client, a transport, a pool or the instance."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from api.document_serializers import to_plain
from api.openapi import MemberSource
from api.permissions import check_permission
from api.renderers import CsvRenderer
from api.serializers.statistics import SeriesSerializer, StatisticsQuerySerializer
from api.views.base import instance_name, parse_request
from api.views.view import ApiView
from console.choices import Permission
from console.queries.policies import instance_named
from console.queries.statistics import time_series

USUAL = timedelta(minutes=15)
"""Default time range."""


class StatisticsView(ApiView):
    """Statistics over time."""

    of_members = MemberSource.STORED
    needs = {"GET": Permission.VIEW}
    renderer_classes = [JSONRenderer, CsvRenderer]

    @extend_schema(parameters=[StatisticsQuerySerializer], responses=SeriesSerializer)
    def get(self, request: Request) -> Response:
        """Return statistics in the best stored resolution that covers the range.

        Resolutions: seconds from Redis (15 minutes), samples of 10 s (one day), minutes (two weeks), hours.
        """
        query = parse_request(StatisticsQuerySerializer, request.query_params)
        instance, now = instance_named(instance_name(request)), timezone.now()
        name = query["name"] or (instance.name if query["of"] == "instance" else "")
        if not name:
            raise ValidationError({"name": ["Say which."]})
        if query["of"] == "client":
            check_permission(request, Permission.VIEW, client=name)
        end = query.get("to") or now
        found = time_series(
            instance,
            query["of"],
            name,
            query.get("from") or end - USUAL,
            end,
            query["step"],
            now,
            query["member"],
        )
        csv = request.accepted_renderer.format == CsvRenderer.format
        return Response(found["points"] if csv else {**found, "missing": to_plain(self.missing())})
