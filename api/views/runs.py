"""Views of journal segments, journal actions, pipeline jobs and runs."""

from __future__ import annotations

from typing import Any

from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from api.auth import actor_of
from api.pagination import NumberedPagination
from api.permissions import check_permission
from api.serializers.actions import RepeatSerializer
from api.serializers.runs import (
    JournalActionSerializer,
    JournalApplySerializer,
    PipelineSerializer,
    PlanSerializer,
    RunSerializer,
    SegmentSerializer,
)
from api.views.base import PagedView, instance_name, member_name, parse_request
from api.views.idempotency import idempotency_key
from api.views.lists import filter_parameters, filtered
from api.views.view import ApiView
from broker_core.errors import OperatorError
from console import current_instance
from console.choices import Permission
from console.models import ActionRun
from console.queries import live, run_redaction
from console.queries import runs as queries
from console.queries.filters import RunFilter
from console.queries.policies import instance_named
from console.services import audit, pipeline, runs
from console.services.actions import planner, run_requests
from console.services.actors import access_of_request


class JournalsView(PagedView):
    """Journal segments of an instance."""

    pagination_class = NumberedPagination
    needs = {"GET": Permission.VIEW}
    by_member = ("GET",)

    @extend_schema(responses=SegmentSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List segments, oldest first: current, sealed, archived, compressed, and the readers that need
        each.
        """
        name = instance_name(request)
        found = live.journal_segments(name, member_name(request))
        return self.page(
            run_redaction.redact_segments(
                found, name or current_instance.instance_name(), access_of_request(request)
            )
        )


class JournalActionView(ApiView):
    """Archiving, compressing and removing of segments."""

    needs = {"POST": Permission.RUN_ACTIONS}
    by_member = ("POST",)

    @extend_schema(request=JournalActionSerializer, responses={200: PlanSerializer, 202: RunSerializer})
    def post(self, request: Request, action: str) -> Response:
        """Archive, compress or remove sealed segments older than `age`. Returns 202 and a run.

        With `dry_run` it returns 200 and the plan, and changes nothing. `remove` needs the hash in `plan`:
        409 `plan_needed` without it, 409 `plan_changed` when other segments would be removed now.
        """
        body = parse_request(JournalActionSerializer, request.data)
        if body["dry_run"]:
            audit.mark_read_only(request)
            return Response(_plan(request, action, body))
        key = idempotency_key(request, "journals", action, body)
        return accepted_response(
            request,
            run_requests.request_journal_run(
                actor_of(request),
                action,
                body["age"],
                body["plan"],
                instance_name(request),
                key,
                in_lake=body["in_lake"],
                member=member_name(request),
            ),
        )


def _plan(request: Request, action: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the plan of a journal action."""
    return planner.journal_plan(
        action, body["age"], instance_name(request), in_lake=body["in_lake"], member=member_name(request)
    )


class JournalPlanView(ApiView):
    """Plan of a journal action."""

    needs = {"POST": Permission.RUN_ACTIONS}
    by_member = ("POST",)

    @extend_schema(request=JournalActionSerializer, responses=PlanSerializer)
    def post(self, request: Request, action: str) -> Response:
        """Return the segments that the action would change now, and the plan's hash. Changes nothing."""
        audit.mark_read_only(request)
        body = parse_request(JournalActionSerializer, request.data)
        return Response(_plan(request, action, body))


class JournalApplyView(ApiView):
    """Execution of a journal action's plan."""

    needs = {"POST": Permission.RUN_ACTIONS}
    by_member = ("POST",)

    @extend_schema(request=JournalApplySerializer, responses={202: RunSerializer})
    def post(self, request: Request, action: str) -> Response:
        """Carry out a plan. Returns 202 and a run.

        Returns 409 `plan_changed` when other segments would be affected now.
        """
        body = parse_request(JournalApplySerializer, request.data)
        key = idempotency_key(request, "journals.apply", action, body)
        return accepted_response(
            request,
            run_requests.apply_journal_plan(
                actor_of(request),
                action,
                body["age"],
                body["plan"],
                instance_name(request),
                key,
                in_lake=body["in_lake"],
                member=member_name(request),
            ),
        )


class PipelineView(ApiView):
    """Jobs of the data pipeline."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=PipelineSerializer, responses={202: RunSerializer})
    def post(self, request: Request, job: str) -> Response:
        """Start a pipeline job. Returns 202 and a run."""
        body = parse_request(PipelineSerializer, request.data)
        key = idempotency_key(request, "pipeline", job, body)
        return accepted_response(
            request, pipeline.request(actor_of(request), job, body["options"], instance_name(request), key)
        )


class RunsView(PagedView):
    """Runs of an instance."""

    needs = {"GET": Permission.VIEW}

    @extend_schema(parameters=filter_parameters(RunFilter), responses=RunSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List runs, newest first."""
        found = queries.runs(instance_named(instance_name(request)))
        return self.page(filtered(RunFilter, request, found), RunSerializer)


class RunView(ApiView):
    """Run of an action."""

    needs = {"GET": Permission.VIEW}

    @extend_schema(responses=RunSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return a run: plan, progress, log, result."""
        run = queries.run(run_id)
        check_permission(request, Permission.VIEW, instance=run.instance.name)
        return Response(run_document(request, run))


class CancelView(ApiView):
    """Cancellation of a run."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=None, responses=RunSerializer)
    def post(self, request: Request, run_id: str) -> Response:
        """Cancel a waiting run, or request that a running one stops after its current step."""
        run = queries.run(run_id)
        check_permission(request, Permission.RUN_ACTIONS, instance=run.instance.name)
        return Response(run_document(request, runs.cancel(actor_of(request), run)))


class ApproveView(ApiView):
    """Approval of a run."""

    needs = {"POST": Permission.APPROVE}

    @extend_schema(request=None, responses=RunSerializer)
    def post(self, request: Request, run_id: str) -> Response:
        """Approve a run that another account requested."""
        return Response(run_document(request, runs.approve(actor_of(request), queries.run(run_id))))


class RepeatView(ApiView):
    """Repetition of a run."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=RepeatSerializer, responses={202: RunSerializer})
    def post(self, request: Request, run_id: str) -> Response:
        """Repeat a run that was lost, failed or cancelled, without the steps that were completed.

        Returns 409 `plan_needed`, with `plan` and its `hash`, when the remaining steps remove data.
        """
        run = queries.run(run_id)
        check_permission(request, Permission.RUN_ACTIONS, instance=run.instance.name)
        body = parse_request(RepeatSerializer, request.data)
        try:
            return accepted_response(request, run_requests.repeat(actor_of(request), run, body["plan"]))
        except OperatorError as problem:
            if problem.code == "plan_needed":
                redacted = run_redaction.redact_plan(run, problem.details["plan"], access_of_request(request))
                problem.details = {**problem.details, "plan": redacted}
            raise


def run_document(request: Request, run: ActionRun) -> dict[str, Any]:
    """Return a run as JSON, without the parts that the caller must not see."""
    return dict(RunSerializer(run, context={"request": request}).data)


def accepted_response(request: Request, run: ActionRun) -> Response:
    """Return a 202 response with the run, and its address as Location."""
    answer = Response(run_document(request, run), status=status.HTTP_202_ACCEPTED)
    answer["Location"] = reverse("v1:run", args=[run.pk])
    return answer
