"""Actions: when, if, do. Each run of one is planned first, and applied with the plan's hash."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from api.auth import actor_of
from api.openapi import IF_MATCH
from api.pagination import NumberedPagination
from api.serializers.actions import (
    ActionPatchSerializer,
    ActionPlanSerializer,
    ActionSerializer,
    ActionWriteSerializer,
    EventPlanSerializer,
    FiringsQuerySerializer,
    FiringsSerializer,
    RunRequestSerializer,
    ScheduleSerializer,
)
from api.serializers.runs import RunSerializer
from api.views.base import PagedView, instance_name, parse_request, required_revision, set_etag
from api.views.idempotency import idempotency_key
from api.views.runs import accepted_response
from api.views.view import ApiView
from console.choices import Permission
from console.models import Action
from console.queries import actions as queries
from console.queries.policies import instance_named
from console.services import audit
from console.services.actions import editor, run_requests, schedule


def _action(request: Request, action_id: int) -> Action:
    return queries.action(instance_named(instance_name(request)), action_id)


def _shown(action: Action, code: int = status.HTTP_200_OK) -> Response:
    return set_etag(Response(ActionSerializer(action).data, status=code), action.version)


class ActionsView(PagedView):
    """All actions."""

    needs = {"GET": Permission.VIEW, "POST": Permission.EDIT_POLICIES}

    @extend_schema(responses=ActionSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Actions by name."""
        return self.page(queries.actions(instance_named(instance_name(request))), ActionSerializer)

    @extend_schema(request=ActionWriteSerializer, responses={201: ActionSerializer})
    def post(self, request: Request) -> Response:
        """Make an action."""
        asked = parse_request(ActionWriteSerializer, request.data)
        made = editor.create(actor_of(request), instance_named(instance_name(request)), asked)
        answer = _shown(made, status.HTTP_201_CREATED)
        answer["Location"] = reverse("v1:action", args=[made.pk])
        return answer


class ActionView(ApiView):
    """One action."""

    needs = {"GET": Permission.VIEW, "PATCH": Permission.EDIT_POLICIES, "DELETE": Permission.EDIT_POLICIES}

    @extend_schema(responses=ActionSerializer)
    def get(self, request: Request, action_id: int) -> Response:
        """An action with its next five firings."""
        return _shown(_action(request, action_id))

    @extend_schema(request=ActionPatchSerializer, responses=ActionSerializer, parameters=[IF_MATCH])
    def patch(self, request: Request, action_id: int) -> Response:
        """Change what is given. If-Match is needed: the action's ETag, or *."""
        asked = parse_request(ActionPatchSerializer, request.data)
        return _shown(
            editor.change(actor_of(request), _action(request, action_id), asked, required_revision(request))
        )

    @extend_schema(request=None, responses={204: None})
    def delete(self, request: Request, action_id: int) -> Response:
        """Delete it; its runs stay."""
        editor.delete(actor_of(request), _action(request, action_id))
        return Response(status=status.HTTP_204_NO_CONTENT)


class ActionPlanView(ApiView):
    """Planning."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=RunRequestSerializer, responses=ActionPlanSerializer)
    def post(self, request: Request, action_id: int) -> Response:
        """What the action would do now, and the plan's hash. Changes nothing."""
        audit.mark_read_only(request)
        asked = parse_request(RunRequestSerializer, request.data)
        return Response(run_requests.plan_action(_action(request, action_id), asked["parameters"]))


class ActionApplyView(ApiView):
    """Applying."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=RunRequestSerializer, responses={202: RunSerializer})
    def post(self, request: Request, action_id: int) -> Response:
        """Run it: 202 and a run. 409 plan_changed when it would no longer do what the plan said."""
        asked, action = parse_request(RunRequestSerializer, request.data), _action(request, action_id)
        run = run_requests.apply_action(
            actor_of(request),
            action,
            asked["parameters"],
            asked["plan"],
            once=idempotency_key(request, "apply", action.pk, asked),
        )
        return accepted_response(request, run)


class RequestPlanView(ApiView):
    """Planning what a path's action would do."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=RunRequestSerializer, responses=ActionPlanSerializer)
    def post(self, request: Request, path: str) -> Response:
        """What a request at this path would do now. Changes nothing."""
        audit.mark_read_only(request)
        asked = parse_request(RunRequestSerializer, request.data)
        action, _ = run_requests.action_at_path(
            instance_named(instance_name(request)), path, asked["parameters"]
        )
        return Response(run_requests.plan_action(action, asked["parameters"]))


class RequestView(ApiView):
    """Actions on an API request."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=RunRequestSerializer, responses={202: RunSerializer})
    def post(self, request: Request, path: str) -> Response:
        """Run the action whose trigger names this path: 202 and a run. 400 when a required parameter is missing."""
        asked = parse_request(RunRequestSerializer, request.data)
        action, trigger = run_requests.action_at_path(
            instance_named(instance_name(request)), path, asked["parameters"]
        )
        key = idempotency_key(request, "at", path, asked)
        return accepted_response(
            request,
            run_requests.apply_action(
                actor_of(request), action, asked["parameters"], asked["plan"], trigger=trigger, once=key
            ),
        )


class EventPlanView(ApiView):
    """Planning what a custom event would start."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=RunRequestSerializer, responses=EventPlanSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Plan the actions that wait for this event, with one hash of all plans. Changes nothing."""
        audit.mark_read_only(request)
        asked = parse_request(RunRequestSerializer, request.data)
        return Response(
            run_requests.event_plan(instance_named(instance_name(request)), name, asked["parameters"])
        )


class EventView(ApiView):
    """Custom events."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=RunRequestSerializer, responses={202: RunSerializer(many=True)})
    def post(self, request: Request, name: str) -> Response:
        """Raise a custom event: 202 and the runs that it starts, which are the caller's.

        409 plan_needed without a plan's hash when one of them removes something; plan_changed when they would
        do something else now."""
        asked = parse_request(RunRequestSerializer, request.data)
        instance = instance_named(instance_name(request))
        runs = run_requests.raise_event(actor_of(request), instance, name, asked["parameters"], asked["plan"])
        return Response(
            RunSerializer(runs, many=True, context={"request": request}).data, status=status.HTTP_202_ACCEPTED
        )


class FiringsView(ApiView):
    """Trying a schedule."""

    needs = {"GET": Permission.VIEW}

    @extend_schema(parameters=[FiringsQuerySerializer], responses=FiringsSerializer)
    def get(self, request: Request) -> Response:
        """The next five firings of a schedule, as `every` would have it."""
        asked: dict[str, Any] = parse_request(FiringsQuerySerializer, request.query_params)
        zone, now = settings.SLUICE_LOCAL_ZONE, timezone.now()
        return Response(
            {
                "zone": str(zone),
                "firings": schedule.next_firings(schedule.parse_schedule(asked["every"], zone), now, now),
            }
        )


class SchedulesView(PagedView):
    """Schedules."""

    pagination_class = NumberedPagination
    needs = {"GET": Permission.VIEW}

    @extend_schema(responses=ScheduleSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Scheduled actions and when each is due next."""
        found = queries.actions(instance_named(instance_name(request)))
        scheduled = [
            action for action in found if any(trigger["on"] == "schedule" for trigger in action.when)
        ]
        return self.page(scheduled, ScheduleSerializer)
