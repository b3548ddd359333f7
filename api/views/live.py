"""Live feed over HTTP, for pages behind a proxy that blocks WebSockets."""

from __future__ import annotations

import msgspec
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from api import live_window
from api.document_serializers import serializer_for, to_plain
from api.openapi import MemberSource
from api.views.base import instance_name, visible_patterns
from api.views.view import ApiView
from console.choices import Permission
from console.queries import live
from console.queries.message_flow import Flow


class FlowView(ApiView):
    """Message flow of an instance."""

    of_members = MemberSource.NOW
    needs = {"GET": Permission.VIEW}

    @extend_schema(responses=serializer_for(Flow))
    def get(self, request: Request) -> Response:
        """Return publishers, topics and clients with messages per second.

        Rates need two snapshots: the first response may lack them. Request again some seconds later.
        """
        shared = live_window.SharedSnapshot(live.instance_snapshot(instance_name(request)))
        return Response(to_plain(shared.flow(visible_patterns(request))))


class LiveView(ApiView):
    """Current window of the live feed."""

    of_members = MemberSource.NOW
    needs = {"GET": Permission.VIEW}

    @extend_schema(
        parameters=[
            OpenApiParameter("view", enum=["totals", "clients", "client", "flow"]),
            *(OpenApiParameter(name) for name in ("search", "delivery", "health", "sort", "client")),
            *(OpenApiParameter(name, OpenApiTypes.INT) for name in ("offset", "limit")),
        ],
        responses=OpenApiTypes.OBJECT,
    )
    def get(self, request: Request) -> HttpResponse:
        """Return a snapshot of one window, in the form of the feed's first message."""
        try:
            window_request = (
                live_window.parse_query(request.META.get("QUERY_STRING", "")) or live_window.WindowRequest()
            )
        except (msgspec.MsgspecError, ValueError) as problem:
            raise ValidationError({"view": [str(problem)]}) from problem
        shared = live_window.SharedSnapshot(live.instance_snapshot(instance_name(request)))
        window = live_window.build_window(shared, window_request, visible_patterns(request))
        return HttpResponse(
            msgspec.json.encode(live_window.window_snapshot(window)), content_type="application/json"
        )
