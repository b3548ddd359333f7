"""Views of managed replays.

A change requires `act_on_clients` for the replay's client, which only the body or the replay names. Each
view therefore checks that itself, and declares only `view`.
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
    """Managed replays of an instance."""

    pagination_class = MembersNumberedPagination
    of_members = MemberSource.NOW
    needs = {"GET": Permission.VIEW, "POST": Permission.VIEW}

    @extend_schema(parameters=[ReplayQuerySerializer], responses=ReplaySerializer(many=True))
    def get(self, request: Request) -> Response:
        """List managed replays, newest first: progress, remaining time, position."""
        query = parse_request(ReplayQuerySerializer, request.query_params)
        return self.page(
            queries.replays(instance_name(request), state=query["state"], patterns=visible_patterns(request))
        )

    @extend_schema(request=NewReplaySerializer, responses={201: ReplaySerializer})
    def post(self, request: Request) -> Response:
        """Create a managed replay for a client, which starts it by subscribing with its name.

        Returns 409 when the name is in use.
        """
        body = parse_request(NewReplaySerializer, request.data)
        check_permission(request, Permission.ACT_ON_CLIENTS, client=body["client"], topic=body["topic"])
        made = services.create(actor_of(request), CreateReplay(**body), instance_name(request))
        return Response(
            to_plain(queries.to_replay_view(made, author=actor_of(request).name)),
            status=status.HTTP_201_CREATED,
        )


class ReplayView(ApiView):
    """Managed replay of a client."""

    needs = {"GET": Permission.VIEW, "PATCH": Permission.VIEW, "DELETE": Permission.VIEW}

    @extend_schema(responses=ReplaySerializer)
    def get(self, request: Request, name: str) -> Response:
        """Return a managed replay."""
        found = queries.replay(name, instance_name(request), patterns=visible_patterns(request))
        return Response(to_plain(found))

    @extend_schema(request=RateSerializer, responses=ReplaySerializer)
    def patch(self, request: Request, name: str) -> Response:
        """Change a replay's rate, effective immediately. Null removes the limit."""
        author = _allow(request, name)
        rate_request = SetReplayRate(name=name, **parse_request(RateSerializer, request.data))
        made = services.control_replay(actor_of(request), rate_request, instance_name(request))
        return Response(to_plain(queries.to_replay_view(made, author=author)))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Remove a finished replay from the list."""
        _allow(request, name)
        services.forget_replay(actor_of(request), name, instance_name(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class ReplayControlView(ApiView):
    """Pausing, resuming and cancelling of a managed replay."""

    needs = {"POST": Permission.VIEW}
    word = ""
    """Key of `console.services.replays.STEER`."""

    @extend_schema(request=None, responses=ReplaySerializer)
    def post(self, request: Request, name: str) -> Response:
        """Pause, resume or cancel a replay.

        A cancelled replay no longer retains the log, and the broker notifies its client.
        """
        author = _allow(request, name)
        made = services.control_replay(
            actor_of(request), services.STEER[self.word](name=name), instance_name(request)
        )
        return Response(to_plain(queries.to_replay_view(made, author=author)))


def _allow(request: Request, name: str) -> str:
    """Check that the caller may act on a replay's client; return the replay's author.

    A replay of a client that the caller may not see doesn't exist for it (`unknown_replay`).
    """
    found = queries.replay(name, instance_name(request), patterns=visible_patterns(request))
    check_permission(request, Permission.ACT_ON_CLIENTS, client=found.client)
    return found.author
