"""Views of actions (automations), their plans, and the events and requests that start them."""

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
from api.views.base import (
    PagedView,
    instance_name,
    parse_request,
    required_revision,
    set_etag,
    visible_patterns,
)
from api.views.idempotency import idempotency_key
from api.views.runs import accepted_response
from api.views.view import ApiView
from console.choices import Permission
from console.models import Action
from console.queries import actions as queries
from console.queries.policies import instance_named
from console.queries.policy_redaction import visible_action
from console.services import audit
from console.services.actions import editor, run_requests, schedule


def _action(request: Request, action_id: int) -> Action:
    """Return the action, on the requested instance."""
    return queries.action(instance_named(instance_name(request)), action_id)


def _detail_response(action: Action, code: int = status.HTTP_200_OK) -> Response:
    """Return a response with an action and its ETag."""
    return set_etag(Response(ActionSerializer(action).data, status=code), action.version)


class ActionsView(PagedView):
    """Actions of an instance."""

    needs = {"GET": Permission.VIEW, "POST": Permission.EDIT_POLICIES}

    @extend_schema(responses=ActionSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the actions by name."""
        found, patterns = queries.actions(instance_named(instance_name(request))), visible_patterns(request)
        return self.page(found, ActionSerializer, visible=lambda one: visible_action(one, patterns))

    @extend_schema(request=ActionWriteSerializer, responses={201: ActionSerializer})
    def post(self, request: Request) -> Response:
        """Create an action."""
        body = parse_request(ActionWriteSerializer, request.data)
        made = editor.create(actor_of(request), instance_named(instance_name(request)), body)
        answer = _detail_response(made, status.HTTP_201_CREATED)
        answer["Location"] = reverse("v1:action", args=[made.pk])
        return answer


class ActionView(ApiView):
    """Action of an instance."""

    needs = {"GET": Permission.VIEW, "PATCH": Permission.EDIT_POLICIES, "DELETE": Permission.EDIT_POLICIES}

    @extend_schema(responses=ActionSerializer)
    def get(self, request: Request, action_id: int) -> Response:
        """Return an action with its next five firings."""
        return _detail_response(visible_action(_action(request, action_id), visible_patterns(request)))

    @extend_schema(request=ActionPatchSerializer, responses=ActionSerializer, parameters=[IF_MATCH])
    def patch(self, request: Request, action_id: int) -> Response:
        """Change fields of an action. Requires If-Match with the action's ETag, or *."""
        body = parse_request(ActionPatchSerializer, request.data)
        return _detail_response(
            editor.change(actor_of(request), _action(request, action_id), body, required_revision(request))
        )

    @extend_schema(request=None, responses={204: None})
    def delete(self, request: Request, action_id: int) -> Response:
        """Delete an action. Its runs remain."""
        editor.delete(actor_of(request), _action(request, action_id))
        return Response(status=status.HTTP_204_NO_CONTENT)


class ActionPlanView(ApiView):
    """Plan of an action."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=RunRequestSerializer, responses=ActionPlanSerializer)
    def post(self, request: Request, action_id: int) -> Response:
        """Return the effect that the action would have now, and the plan's hash. Changes nothing."""
        audit.mark_read_only(request)
        body = parse_request(RunRequestSerializer, request.data)
        return Response(run_requests.plan_action(_action(request, action_id), body["parameters"]))


class ActionApplyView(ApiView):
    """Run of an action."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=RunRequestSerializer, responses={202: RunSerializer})
    def post(self, request: Request, action_id: int) -> Response:
        """Run an action. Returns 202 and the run.

        Returns 409 `plan_changed` if the action would now do something else than the plan says.
        """
        body, action = parse_request(RunRequestSerializer, request.data), _action(request, action_id)
        run = run_requests.apply_action(
            actor_of(request),
            action,
            body["parameters"],
            body["plan"],
            once=idempotency_key(request, "apply", action.pk, body),
        )
        return accepted_response(request, run)


class RequestPlanView(ApiView):
    """Plan of the action that a request path starts."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=RunRequestSerializer, responses=ActionPlanSerializer)
    def post(self, request: Request, path: str) -> Response:
        """Return the effect that a request at this path would have now, and the plan's hash.

        Changes nothing.
        """
        audit.mark_read_only(request)
        body = parse_request(RunRequestSerializer, request.data)
        action, _ = run_requests.action_at_path(
            instance_named(instance_name(request)), path, body["parameters"]
        )
        return Response(run_requests.plan_action(action, body["parameters"]))


class RequestView(ApiView):
    """Actions that start on an API request."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=RunRequestSerializer, responses={202: RunSerializer})
    def post(self, request: Request, path: str) -> Response:
        """Run the action whose trigger names this path. Returns 202 and the run.

        Returns 400 when a required parameter is missing.
        """
        body = parse_request(RunRequestSerializer, request.data)
        action, trigger = run_requests.action_at_path(
            instance_named(instance_name(request)), path, body["parameters"]
        )
        key = idempotency_key(request, "at", path, body)
        return accepted_response(
            request,
            run_requests.apply_action(
                actor_of(request), action, body["parameters"], body["plan"], trigger=trigger, once=key
            ),
        )


class EventPlanView(ApiView):
    """Plan of the actions that a custom event starts."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=RunRequestSerializer, responses=EventPlanSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Return the plans of the actions that this event would start, with one hash for all of them.

        Changes nothing.
        """
        audit.mark_read_only(request)
        body = parse_request(RunRequestSerializer, request.data)
        return Response(
            run_requests.event_plan(instance_named(instance_name(request)), name, body["parameters"])
        )


class EventView(ApiView):
    """Custom events that start actions."""

    needs = {"POST": Permission.RUN_ACTIONS}

    @extend_schema(request=RunRequestSerializer, responses={202: RunSerializer(many=True)})
    def post(self, request: Request, name: str) -> Response:
        """Raise a custom event. Returns 202 and the runs that it starts, with the caller as their author.

        Returns 409 `plan_needed` when a run removes data and the request has no plan hash, and
        `plan_changed` when the runs would now do something else.
        """
        body = parse_request(RunRequestSerializer, request.data)
        instance = instance_named(instance_name(request))
        runs = run_requests.raise_event(actor_of(request), instance, name, body["parameters"], body["plan"])
        return Response(
            RunSerializer(runs, many=True, context={"request": request}).data, status=status.HTTP_202_ACCEPTED
        )


class FiringsView(ApiView):
    """Preview of a schedule."""

    needs = {"GET": Permission.VIEW}

    @extend_schema(parameters=[FiringsQuerySerializer], responses=FiringsSerializer)
    def get(self, request: Request) -> Response:
        """Return the next five firings of the schedule in `every`."""
        query: dict[str, Any] = parse_request(FiringsQuerySerializer, request.query_params)
        zone, now = settings.SLUICE_LOCAL_ZONE, timezone.now()
        return Response(
            {
                "zone": str(zone),
                "firings": schedule.next_firings(schedule.parse_schedule(query["every"], zone), now, now),
            }
        )


class SchedulesView(PagedView):
    """Scheduled actions of an instance."""

    pagination_class = NumberedPagination
    needs = {"GET": Permission.VIEW}

    @extend_schema(responses=ScheduleSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List scheduled actions with their next firing."""
        found = queries.actions(instance_named(instance_name(request)))
        scheduled = [
            action for action in found if any(trigger["on"] == "schedule" for trigger in action.when)
        ]
        return self.page(scheduled, ScheduleSerializer)
