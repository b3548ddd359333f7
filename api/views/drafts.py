"""Views of policy drafts (edit, preview, publish), imports from other brokers, and staged rollouts."""

from __future__ import annotations

from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from api.auth import actor_of
from api.confirmation import guard_ending_rollout, guard_publishing, preview_document
from api.openapi import IF_MATCH
from api.permissions import check_permission
from api.serializers.drafts import (
    DraftPatchSerializer,
    DraftPreviewSerializer,
    DraftPublishSerializer,
    DraftSerializer,
    DraftSummarySerializer,
    DraftWriteSerializer,
    ImportReportSerializer,
    ImportSerializer,
    PreviewSerializer,
    RolloutSerializer,
    RolloutStopSerializer,
)
from api.serializers.policies import ConfirmationSerializer, PolicyChangeResultSerializer
from api.views.base import (
    PagedView,
    instance_name,
    parse_request,
    required_revision,
    set_etag,
    visible_patterns,
)
from api.views.view import ApiView
from console.choices import Permission
from console.models import PolicyDraft
from console.queries import policies as queries
from console.queries.policy_redaction import visible_draft, visible_rollout
from console.services import audit, drafts, policy_files, rollouts
from console.services.actors import access_of_request


def _draft(request: Request, draft_id: int, permission: Permission) -> PolicyDraft:
    """Return a draft after checking the permission for its instance."""
    draft = drafts.draft_numbered(draft_id)
    check_permission(request, permission, instance=draft.instance.name)
    return draft


def _detail_response(draft: PolicyDraft, code: int = status.HTTP_200_OK) -> Response:
    """Return a response with a draft and its ETag."""
    return set_etag(Response(DraftSerializer(draft).data, status=code), draft.version)


class DraftsView(PagedView):
    """Drafts of an instance's policy."""

    needs = {"GET": Permission.VIEW, "POST": Permission.EDIT_POLICIES}

    @extend_schema(responses=DraftSummarySerializer(many=True))
    def get(self, request: Request) -> Response:
        """List drafts, the most recently changed first."""
        found = queries.drafts(queries.instance_named(instance_name(request))).defer("document")
        return self.page(found, DraftSummarySerializer)

    @extend_schema(request=DraftWriteSerializer, responses={201: DraftSerializer})
    def post(self, request: Request) -> Response:
        """Create a draft from the newest revision, an older revision, or a document."""
        body = parse_request(DraftWriteSerializer, request.data)
        draft = drafts.create_draft(
            actor_of(request),
            body["title"],
            document=body.get("document"),
            revision=body.get("revision"),
            instance_name=instance_name(request),
        )
        answer = _detail_response(draft, status.HTTP_201_CREATED)
        answer["Location"] = reverse("v1:draft", args=[draft.pk])
        return answer


class DraftImportView(ApiView):
    """Import of a configuration file."""

    needs = {"POST": Permission.EDIT_POLICIES}

    @extend_schema(request=ImportSerializer, responses={201: ImportReportSerializer})
    def post(self, request: Request) -> Response:
        """Create a draft from a configuration file, and report for each setting of the file whether it was
        imported.

        Actions in the file are created disabled.
        """
        body, instance = (
            parse_request(ImportSerializer, request.data),
            queries.instance_named(instance_name(request)),
        )
        made = policy_files.make_draft(
            actor_of(request),
            instance,
            body["system"],
            body["text"],
            title=body["title"],
            values=body["values"],
        )
        answer = set_etag(
            Response(ImportReportSerializer(made).data, status=status.HTTP_201_CREATED), made.draft.version
        )
        answer["Location"] = reverse("v1:draft", args=[made.draft.pk])
        return answer


class DraftView(ApiView):
    """Draft of an instance's policy."""

    needs = {"GET": Permission.VIEW, "PATCH": Permission.EDIT_POLICIES, "DELETE": Permission.EDIT_POLICIES}

    @extend_schema(responses=DraftSerializer)
    def get(self, request: Request, draft_id: int) -> Response:
        """Return a draft. Its ETag is the draft's version."""
        draft = _draft(request, draft_id, Permission.VIEW)
        patterns = access_of_request(request).client_patterns(draft.instance.name)
        return _detail_response(visible_draft(draft, patterns))

    @extend_schema(request=DraftPatchSerializer, responses=DraftSerializer, parameters=[IF_MATCH])
    def patch(self, request: Request, draft_id: int) -> Response:
        """Apply changes to a draft. Requires If-Match with the draft's ETag, or *."""
        _draft(request, draft_id, Permission.EDIT_POLICIES)
        body = parse_request(DraftPatchSerializer, request.data)
        draft = drafts.edit_draft(
            actor_of(request),
            draft_id,
            body["changes"],
            title=body.get("title"),
            expected_version=required_revision(request),
        )
        return _detail_response(draft)

    @extend_schema(responses={204: None}, parameters=[IF_MATCH])
    def delete(self, request: Request, draft_id: int) -> Response:
        """Delete a draft. Requires If-Match."""
        _draft(request, draft_id, Permission.EDIT_POLICIES)
        drafts.delete(actor_of(request), draft_id, expected_version=required_revision(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class DraftPreviewView(ApiView):
    """Preview of a draft."""

    needs = {"POST": Permission.VIEW}

    @extend_schema(request=DraftPreviewSerializer, responses=PreviewSerializer)
    def post(self, request: Request, draft_id: int) -> Response:
        """Return the effect of publishing a draft: affected clients and immediate decisions.

        Each client has its effective values before and after. With `rollout` the preview assumes a staged
        rollout to some clients first.
        """
        audit.mark_read_only(request)
        draft = _draft(request, draft_id, Permission.VIEW)
        patterns = access_of_request(request).client_patterns(draft.instance.name)
        body = parse_request(DraftPreviewSerializer, request.data)
        plan = rollouts.RolloutPlan(**body["rollout"]) if body["rollout"] else None
        return Response(preview_document(drafts.restrict_preview(drafts.preview(draft, plan), patterns)))


class DraftPublishView(ApiView):
    """Publication of a draft."""

    needs = {"POST": Permission.EDIT_POLICIES}

    @extend_schema(
        request=DraftPublishSerializer, responses=PolicyChangeResultSerializer, parameters=[IF_MATCH]
    )
    def post(self, request: Request, draft_id: int) -> Response:
        """Publish a draft as a new revision of the policy, with `rollout` to some clients first.

        Requires If-Match. Returns 409 `confirm_needed` when the preview has warnings and `confirmed` isn't
        true.
        """
        _draft(request, draft_id, Permission.EDIT_POLICIES)
        body = parse_request(DraftPublishSerializer, request.data)
        plan = rollouts.RolloutPlan(**body["rollout"]) if body["rollout"] else None
        change = drafts.publish(
            actor_of(request),
            draft_id,
            reason=body["reason"],
            expected_version=required_revision(request),
            rollout=plan,
            guard=guard_publishing(request, confirmed=body["confirmed"], rollout=plan),
        )
        return set_etag(Response(PolicyChangeResultSerializer(change).data), change.revision.number)


class RolloutsView(PagedView):
    """Staged rollouts of an instance."""

    needs = {"GET": Permission.VIEW}

    @extend_schema(responses=RolloutSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List rollouts, newest first. At most one is running."""
        instance = queries.instance_named(instance_name(request))
        found, patterns = queries.rollouts(instance), visible_patterns(request)
        return self.page(found, RolloutSerializer, visible=lambda one: visible_rollout(one, patterns))


class RolloutPromoteView(ApiView):
    """Promotion of a staged revision."""

    needs = {"POST": Permission.EDIT_POLICIES}

    @extend_schema(
        request=ConfirmationSerializer, responses=PolicyChangeResultSerializer, parameters=[IF_MATCH]
    )
    def post(self, request: Request) -> Response:
        """Put the staged revision in force for all clients. Requires If-Match with the policy's ETag, or *.

        Returns 409 `confirm_needed` when that closes connections or acts on clients, and `confirmed` isn't
        true.
        """
        body = parse_request(ConfirmationSerializer, request.data)
        instance = queries.instance_named(instance_name(request))
        change = rollouts.promote(
            actor_of(request),
            instance,
            expected_revision=required_revision(request),
            guard=guard_ending_rollout(request, confirmed=body["confirmed"]),
        )
        return Response(PolicyChangeResultSerializer(change).data)


class RolloutStopView(ApiView):
    """End of a staged rollout."""

    needs = {"POST": Permission.EDIT_POLICIES}

    @extend_schema(
        request=RolloutStopSerializer, responses=PolicyChangeResultSerializer, parameters=[IF_MATCH]
    )
    def post(self, request: Request) -> Response:
        """Stop the rollout and restore the previous revision for the staged clients.

        Requires If-Match with the policy's ETag, or *. Returns 409 `confirm_needed` when that closes
        connections or acts on clients, and `confirmed` isn't true.
        """
        body = parse_request(RolloutStopSerializer, request.data)
        instance = queries.instance_named(instance_name(request))
        reason = body["reason"] or "Stopped by an operator."
        change = rollouts.stop(
            actor_of(request),
            instance,
            reason=reason,
            expected_revision=required_revision(request),
            guard=guard_ending_rollout(request, confirmed=body["confirmed"]),
        )
        return Response(PolicyChangeResultSerializer(change).data)
