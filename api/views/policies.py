"""Views of policies, transports and revisions. Each change creates a new revision."""

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
from api.views.base import (
    PagedView,
    instance_name,
    parse_request,
    required_revision,
    set_etag,
    visible_patterns,
)
from api.views.view import ApiView
from broker_core.config.transports import TRANSPORT_DEFAULTS
from broker_core.errors import OperatorError
from console.access.policy_secrets import redact_secrets
from console.broker_link import BrokerUnavailable
from console.choices import Permission
from console.queries import live
from console.queries import policies as queries
from console.queries.policy_redaction import visible_document, visible_revision, visible_status
from console.services import policies


class TransportsView(ApiView):
    """Transports of an instance."""

    needs = {"GET": Permission.VIEW}

    @extend_schema(responses=TransportSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the policy's transports and their running state. The ETag is the revision."""
        document = policies.document_in_force(queries.instance_named(instance_name(request)).name)
        return set_etag(Response(list_transports(document)), document["revision"])


class TransportView(ApiView):
    """Transport of an instance."""

    needs = {"GET": Permission.VIEW, "PATCH": Permission.EDIT_POLICIES}

    @extend_schema(responses=TransportSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Return a transport of the policy and its running state."""
        document = policies.document_in_force(queries.instance_named(instance_name(request)).name)
        for transport in list_transports(document):
            if transport["name"] == name:
                return set_etag(Response(transport), document["revision"])
        raise OperatorError(
            "unknown_transport", f"The transport {name!r} doesn't exist.", "See /api/v1/transports."
        )

    @extend_schema(
        request=TransportChangeSerializer, responses=PolicyChangeResultSerializer, parameters=[IF_MATCH]
    )
    def patch(self, request: Request, name: str) -> Response:
        """Change a transport: create a new revision and send it to the broker.

        Requires If-Match with the revision's ETag, or *. Returns 409 `confirm_needed` when the preview has
        warnings and `confirmed` isn't true.
        """
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
    """Policy of an instance."""

    needs = {"GET": Permission.VIEW, "PATCH": Permission.EDIT_POLICIES}

    @extend_schema(responses=PolicySerializer)
    def get(self, request: Request) -> Response:
        """Return the newest policy document, and whether the broker runs it.

        A caller that may see only some clients gets no users and entitlements, and no entries for others.
        """
        instance = queries.instance_named(instance_name(request))
        document, patterns = policies.document_in_force(instance.name), visible_patterns(request)
        status = visible_status(queries.policy_status(instance), patterns)
        answer = {
            "revision": document["revision"],
            "document": redact_secrets(visible_document(document, patterns)),
            "in_force": PolicyStatusSerializer(status).data,
        }
        return set_etag(Response(answer), document["revision"])

    @extend_schema(
        request=PolicyChangeSerializer, responses=PolicyChangeResultSerializer, parameters=[IF_MATCH]
    )
    def patch(self, request: Request) -> Response:
        """Change the policy: create a new revision and send it to the broker.

        Requires If-Match with the revision's ETag, or *. Returns 409 `confirm_needed` when the preview has
        warnings and `confirmed` isn't true.
        """
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
    """Revisions of an instance's policy."""

    pagination_class = NumberedPagination

    needs = {"GET": Permission.VIEW}

    @extend_schema(responses=RevisionSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List revisions, newest first."""
        found = queries.revisions(queries.instance_named(instance_name(request)))
        patterns = visible_patterns(request)
        return self.page(found, RevisionSerializer, visible=lambda one: visible_revision(one, patterns))


class RevisionView(ApiView):
    """Revision of an instance's policy."""

    needs = {"GET": Permission.VIEW}

    @extend_schema(responses=RevisionSerializer)
    def get(self, request: Request, number: int) -> Response:
        """Return a revision with its document."""
        instance = queries.instance_named(instance_name(request))
        found = visible_revision(queries.revision_numbered(instance, number), visible_patterns(request))
        return Response(RevisionSerializer(found).data)


def list_transports(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the document's transports, each with its running state; null while the broker is unavailable."""
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
