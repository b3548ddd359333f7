"""Managed replays: the list, one of them, and what operators do to it.

Whoever changes one needs `act_on_clients` for its client, which stands in the body or the row: so each view asks for
that itself, and the door for no more than `view`.
"""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from api.auth import actor_of
from api.document_serializers import to_plain
from api.openapi import MemberSource
from api.pagination import MembersNumberedPagination
from api.permissions import check_permission
from api.serializers.replays import (
    NewReplaySerializer,
    RateSerializer,
    ReplayQuerySerializer,
    ReplaySerializer,
)
from api.views.base import PagedView, instance_name, parse_request, visible_patterns
from api.views.view import ApiView
from broker_core.documents.requests import CreateReplay, SetReplayRate
from console.choices import Permission
from console.queries import replays as queries
from console.services import replays as services


class ReplaysView(PagedView):
    """All managed replays."""

    pagination_class = MembersNumberedPagination
    of_members = MemberSource.NOW
    needs = {"GET": Permission.VIEW, "POST": Permission.VIEW}

    @extend_schema(parameters=[ReplayQuerySerializer], responses=ReplaySerializer(many=True))
    def get(self, request: Request) -> Response:
        """Managed replays, the newest first: progress, time left, position."""
        asked = parse_request(ReplayQuerySerializer, request.query_params)
        return self.page(
            queries.replays(instance_name(request), state=asked["state"], patterns=visible_patterns(request))
        )

    @extend_schema(request=NewReplaySerializer, responses={201: ReplaySerializer})
    def post(self, request: Request) -> Response:
        """Make one for a client, which goes on with it by subscribing with its name. 409 when the name is taken."""
        asked = parse_request(NewReplaySerializer, request.data)
        check_permission(request, Permission.ACT_ON_CLIENTS, client=asked["client"], topic=asked["topic"])
        made = services.create(actor_of(request), CreateReplay(**asked), instance_name(request))
        return Response(
            to_plain(queries.to_replay_view(made, author=actor_of(request).name)),
            status=status.HTTP_201_CREATED,
        )


class ReplayView(ApiView):
    """One managed replay."""

    needs = {"GET": Permission.VIEW, "PATCH": Permission.VIEW, "DELETE": Permission.VIEW}

    @extend_schema(responses=ReplaySerializer)
    def get(self, request: Request, name: str) -> Response:
        """One of them."""
        found = queries.replay(name, instance_name(request))
        check_permission(request, Permission.VIEW, client=found.client)
        return Response(to_plain(found))

    @extend_schema(request=RateSerializer, responses=ReplaySerializer)
    def patch(self, request: Request, name: str) -> Response:
        """Change its rate from now on; null lifts it."""
        author = _allow(request, name)
        asked = SetReplayRate(name=name, **parse_request(RateSerializer, request.data))
        made = services.control_replay(actor_of(request), asked, instance_name(request))
        return Response(to_plain(queries.to_replay_view(made, author=author)))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Take an ended one off the list."""
        _allow(request, name)
        services.forget_replay(actor_of(request), name, instance_name(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class ReplayControlView(ApiView):
    """pause, resume, cancel."""

    needs = {"POST": Permission.VIEW}
    word = ""

    @extend_schema(request=None, responses=ReplaySerializer)
    def post(self, request: Request, name: str) -> Response:
        """Pause it, let it go on, or end it; a cancelled one holds the log no longer and its client is told."""
        author = _allow(request, name)
        made = services.control_replay(
            actor_of(request), services.STEER[self.word](name=name), instance_name(request)
        )
        return Response(to_plain(queries.to_replay_view(made, author=author)))


def _allow(request: Request, name: str) -> str:
    """Who made it, if the caller may act on its client."""
    found = queries.replay(name, instance_name(request))
    check_permission(request, Permission.ACT_ON_CLIENTS, client=found.client)
    return found.author
