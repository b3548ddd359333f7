"""Views of the loss ledger and of durable subscriptions."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.auth import actor_of
from api.document_serializers import to_plain
from api.openapi import MemberSource
from api.pagination import MembersCursorPagination
from api.serializers.ledger import DurableSerializer, LossQuerySerializer, LossSerializer
from api.views.base import PagedView, instance_name, parse_request, visible_patterns
from api.views.view import ApiView
from console.choices import Permission
from console.queries import ledger
from console.queries.policies import instance_named
from console.services import clients as services


class LedgerView(PagedView):
    """Losses of an instance."""

    pagination_class = MembersCursorPagination
    of_members = MemberSource.STORED
    needs = {"GET": Permission.VIEW}

    @extend_schema(parameters=[LossQuerySerializer], responses=LossSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List intervals of messages that subscriptions did not get, newest first."""
        query = parse_request(LossQuerySerializer, request.query_params)
        found = ledger.losses(
            instance_named(query["instance"] or None),
            client=query["client"],
            subscription=query["subscription"],
            cause=query["cause"],
            rule=query["rule"],
            since=query.get("since"),
            patterns=visible_patterns(request),
        )
        return self.page(found, LossSerializer)


class DurablesView(ApiView):
    """Durable subscriptions of an instance."""

    of_members = MemberSource.NOW
    needs = {"GET": Permission.VIEW}

    @extend_schema(responses=DurableSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List durable subscriptions, including those of disconnected clients."""
        return Response(to_plain(ledger.durables(instance_name(request), visible_patterns(request))))


class DurableView(ApiView):
    """Durable subscription of a client."""

    needs = {"DELETE": Permission.ACT_ON_CLIENTS}
    scope = {"client": "name"}

    @extend_schema(responses={204: None})
    def delete(self, request: Request, name: str, durable: str) -> Response:
        """Delete a durable subscription. Its position is discarded and no longer retains the log."""
        services.delete_durable(actor_of(request), name, durable, instance_name(request))
        return Response(status=204)
