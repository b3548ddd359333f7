"""Transports and policies: read what is wanted and what runs; change it as a new revision."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.auth import actor_of
from api.confirmation import guard_publishing
from api.document_serializers import to_plain
from api.openapi import IF_MATCH
from api.pagination import NumberedPagination
from api.serializers.policies import (
    PolicyChangeResultSerializer,
    PolicyChangeSerializer,
    PolicySerializer,
    PolicyStatusSerializer,
    RevisionSerializer,
    TransportChangeSerializer,
    TransportSerializer,
)
from api.views.base import PagedView, instance_name, parse_request, required_revision, set_etag
from api.views.view import ApiView
from broker_core.config.transports import TRANSPORT_DEFAULTS
from broker_core.errors import OperatorError
from console.access.policy_secrets import redact_secrets
from console.broker_link import BrokerUnavailable
from console.choices import Permission
from console.queries import live
from console.queries import policies as queries
from console.services import policies


class TransportsView(ApiView):
    """All transports."""

    needs = {"GET": Permission.VIEW}

    @extend_schema(responses=TransportSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Every transport of the policy, and as it runs; the ETag is the revision."""
        document = policies.document_in_force(queries.instance_named(instance_name(request)).name)
        return set_etag(Response(transports_of(document)), document["revision"])


class TransportView(ApiView):
    """One transport."""

    needs = {"GET": Permission.VIEW, "PATCH": Permission.EDIT_POLICIES}

    @extend_schema(responses=TransportSerializer)
    def get(self, request: Request, name: str) -> Response:
        """A transport of the policy, and as it runs."""
        document = policies.document_in_force(queries.instance_named(instance_name(request)).name)
        for transport in transports_of(document):
            if transport["name"] == name:
                return set_etag(Response(transport), document["revision"])
        raise OperatorError(
            "unknown_transport", f"There is no transport {name!r}.", "See /api/v1/transports."
        )

    @extend_schema(
        request=TransportChangeSerializer, responses=PolicyChangeResultSerializer, parameters=[IF_MATCH]
    )
    def patch(self, request: Request, name: str) -> Response:
        """Change a transport; makes a new revision and tells the broker.

        If-Match is needed: the revision's ETag, or *. 409 confirm_needed when its preview has warnings and `confirmed` isn't true."""
        changes = parse_request(TransportChangeSerializer, request.data)
        reason, confirmed = changes.pop("reason"), changes.pop("confirmed")
        change = policies.change_transport(
            actor_of(request),
            name,
            changes,
            reason=reason,
            instance_name=instance_name(request),
            expected_revision=required_revision(request),
            guard=guard_publishing(request, confirmed=confirmed),
        )
        return set_etag(Response(PolicyChangeResultSerializer(change).data), change.revision.number)


class PolicyView(ApiView):
    """The instance's policy."""

    needs = {"GET": Permission.VIEW, "PATCH": Permission.EDIT_POLICIES}

    @extend_schema(responses=PolicySerializer)
    def get(self, request: Request) -> Response:
        """The policy document that is wanted, and whether the broker runs it."""
        instance = queries.instance_named(instance_name(request))
        document = policies.document_in_force(instance.name)
        answer = {
            "revision": document["revision"],
            "document": redact_secrets(document),
            "in_force": PolicyStatusSerializer(queries.policy_status(instance)).data,
        }
        return set_etag(Response(answer), document["revision"])

    @extend_schema(
        request=PolicyChangeSerializer, responses=PolicyChangeResultSerializer, parameters=[IF_MATCH]
    )
    def patch(self, request: Request) -> Response:
        """Change the policy; makes a new revision and tells the broker.

        If-Match is needed: the revision's ETag, or *. 409 confirm_needed when its preview has warnings and `confirmed` isn't true."""
        changes = parse_request(PolicyChangeSerializer, request.data)
        reason, confirmed = changes.pop("reason"), changes.pop("confirmed")
        change = policies.change_instance_policy(
            actor_of(request),
            changes,
            reason=reason,
            instance_name=instance_name(request),
            expected_revision=required_revision(request),
            guard=guard_publishing(request, confirmed=confirmed),
        )
        return set_etag(Response(PolicyChangeResultSerializer(change).data), change.revision.number)


class RevisionsView(PagedView):
    """All revisions."""

    pagination_class = NumberedPagination

    needs = {"GET": Permission.VIEW}

    @extend_schema(responses=RevisionSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Revisions, newest first."""
        return self.page(
            queries.revisions(queries.instance_named(instance_name(request))), RevisionSerializer
        )


class RevisionView(ApiView):
    """One revision."""

    needs = {"GET": Permission.VIEW}

    @extend_schema(responses=RevisionSerializer)
    def get(self, request: Request, number: int) -> Response:
        """A revision with its document."""
        instance = queries.instance_named(instance_name(request))
        return Response(RevisionSerializer(queries.revision_numbered(instance, number)).data)


def transports_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The document's transports with what the broker says of each; null while it is away."""
    try:
        running = {
            entry.name: to_plain(entry)
            for entry in live.instance_status(document["instance"]["name"]).transports
        }
    except BrokerUnavailable:
        running = {}
    return [
        {**TRANSPORT_DEFAULTS, **transport, "running": running.get(transport["name"])}
        for transport in document["transports"]
    ]
