"""View of a topic's messages: browse the journal, publish a message."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from api.auth import actor_of
from api.document_serializers import to_plain
from api.renderers import CsvRenderer
from api.serializers.messages import BrowseSerializer, MessagesSerializer, PublishSerializer
from api.views.base import instance_name, parse_request
from api.views.view import ApiView
from console.choices import Permission
from console.queries import messages as queries
from console.services import messages


class MessagesView(ApiView):
    """Messages of a topic."""

    needs = {"GET": Permission.READ_MESSAGES, "POST": Permission.PUBLISH}
    scope = {"topic": "topic"}
    renderer_classes = [JSONRenderer, CsvRenderer]

    @extend_schema(parameters=[BrowseSerializer], responses=MessagesSerializer)
    def get(self, request: Request, topic: str) -> Response:
        """List messages of a topic or topic pattern, in journal order, up to the durable frontier."""
        query = parse_request(BrowseSerializer, request.query_params)
        found = queries.browse_messages(
            topic,
            filter=query["filter"],
            bookmark=query["bookmark"],
            start=query.get("from"),
            end=query.get("to"),
            limit=query["limit"],
            instance_name=instance_name(request),
        )
        csv = request.accepted_renderer.format == CsvRenderer.format
        return Response(to_plain(found.messages if csv else found))

    @extend_schema(request=PublishSerializer, responses={202: dict})
    def post(self, request: Request, topic: str) -> Response:
        """Publish a message.

        Returns 202, because the message is written to disk shortly after the response.
        """
        body = parse_request(PublishSerializer, request.data)
        made = messages.publish(
            actor_of(request), topic, body["data"], body["reason"], instance_name(request)
        )
        return Response(to_plain(made), status=status.HTTP_202_ACCEPTED)
