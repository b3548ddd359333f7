"""Views of brokers and clients: current state, history, and decisions."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from api.auth import actor_of
from api.document_serializers import serializer_for, to_plain
from api.openapi import MemberSource
from api.pagination import MembersCursorPagination, MembersNumberedPagination
from api.serializers.clients import (
    ActSerializer,
    ClientQuerySerializer,
    ClientSerializer,
    DecisionSerializer,
    DisconnectSerializer,
    EffectiveSettingSerializer,
    ForecastSerializer,
    HistoryQuerySerializer,
    InstanceQuerySerializer,
    SampleSerializer,
    StatusSerializer,
)
from api.serializers.policies import PolicyStatusSerializer
from api.views.base import PagedView, instance_name, member_name, parse_request, visible_patterns
from api.views.lists import filter_parameters, filtered
from api.views.view import ApiView
from broker_core.documents import client_columns
from console.choices import Permission
from console.queries import brokers, clients, history, live
from console.queries.brokers import BrokerEntry
from console.queries.filters import DecisionFilter
from console.queries.policies import instance_named, policy_status
from console.queries.policy_redaction import visible_status
from console.services import clients as services
from console.services.actors import access_of_request


class BrokersView(ApiView):
    """Brokers of the installation."""

    needs = {"GET": Permission.VIEW}

    @extend_schema(responses=serializer_for(BrokerEntry)(many=True))
    def get(self, request: Request) -> Response:
        """List the brokers of all instances that the caller may see, or of the requested instance.

        Each entry says whether the broker answers, and its state.
        """
        return Response(to_plain(brokers.brokers(access_of_request(request), instance_name(request))))


class StatusView(ApiView):
    """Status of an instance."""

    of_members = MemberSource.NOW
    needs = {"GET": Permission.VIEW}
    by_member = ("GET",)

    @extend_schema(responses=StatusSerializer)
    def get(self, request: Request) -> Response:
        """Return rates, totals, pools, transports and the journal of an instance.

        Returns 503 while the broker is unavailable.
        """
        instance = instance_named(instance_name(request))
        return Response(
            {
                **to_plain(live.instance_status(instance.name, member_name(request))),
                "in_force": PolicyStatusSerializer(
                    visible_status(policy_status(instance), visible_patterns(request))
                ).data,
                "missing": to_plain(self.missing()),
            }
        )


class ClientsView(PagedView):
    """Clients of an instance."""

    pagination_class = MembersNumberedPagination
    of_members = MemberSource.NOW
    needs = {"GET": Permission.VIEW}
    by_member = ("GET",)

    @extend_schema(parameters=[ClientQuerySerializer], responses=ClientSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List logged-on clients: lag, state, time since offlining, spool, policy revision.

        The list is filtered, sorted and paginated.
        """
        query = parse_request(ClientQuerySerializer, request.query_params)
        found = clients.ClientSequence(
            query["instance"] or None,
            delivery=query["delivery"],
            health=query["health"],
            transport=query["transport"],
            search=query["search"],
            sort=query["sort"],
            patterns=visible_patterns(request),
            member=member_name(request),
        )
        return self.page(found, columns=client_columns.csv_columns())


class ClientView(ApiView):
    """Client of an instance."""

    needs = {"GET": Permission.VIEW}
    scope = {"client": "name"}

    @extend_schema(responses=ClientSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Return a client with its subscriptions."""
        return Response(to_plain(clients.client(name, instance_name(request))))


class EffectiveView(ApiView):
    """Effective settings of one client."""

    needs = {"GET": Permission.VIEW}
    scope = {"client": "name"}

    @extend_schema(responses=EffectiveSettingSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """List each setting in force for a client and its subscriptions: value, unit, and the policy entry
        that sets it.
        """
        return Response(to_plain(clients.effective_settings(name, instance_name(request))))


class ForecastsView(ApiView):
    """Forecasts for one client."""

    needs = {"GET": Permission.VIEW}
    scope = {"client": "name"}

    @extend_schema(responses=ForecastSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """List forecasts of rule actions on a client, soonest first.

        The list includes rules of the client, its subscriptions and its pool. Each forecast has the
        expected time, or the reason why there is no estimate.
        """
        return Response(to_plain(clients.forecasts(name, instance_name(request))))


class DisconnectView(ApiView):
    """Disconnection of a client."""

    needs = {"POST": Permission.ACT_ON_CLIENTS}
    scope = {"client": "name"}

    @extend_schema(request=DisconnectSerializer, responses={200: dict})
    def post(self, request: Request, name: str) -> Response:
        """Disconnect a client. The broker sends the reason to the client."""
        body = parse_request(DisconnectSerializer, request.data)
        result = services.disconnect(actor_of(request), name, body["reason"], instance_name(request))
        return Response({"name": name, "disconnected": True, "result": to_plain(result)})


class ClientControlView(ApiView):
    """Pausing, resuming and offlining of a client."""

    needs = {"POST": Permission.ACT_ON_CLIENTS}
    scope = {"client": "name"}
    word = ""
    """Key of `console.services.clients.CONTROL_REQUESTS`."""

    @extend_schema(request=ActSerializer, responses={200: dict})
    def post(self, request: Request, name: str) -> Response:
        """Pause or resume a client's subscriptions, or move its backlog to its spool (offline)."""
        body = parse_request(ActSerializer, request.data)
        options = {} if self.word == "offline" else {"subscription": body["subscription"]}
        control_request = services.CONTROL_REQUESTS[self.word](name=name, **options)
        return Response(
            to_plain(
                services.control_client(
                    actor_of(request), control_request, body["reason"], instance_name(request)
                )
            )
        )


class ClientHistoryView(ApiView):
    """History of a client."""

    of_members = MemberSource.STORED
    needs = {"GET": Permission.VIEW}
    scope = {"client": "name"}

    @extend_schema(parameters=[HistoryQuerySerializer], responses=SampleSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """List samples of a client, taken every 10 seconds.

        A longer `step` gives the worst values of each step. An idle client has one sample a minute.
        """
        query = parse_request(HistoryQuerySerializer, request.query_params)
        end = query.get("end") or timezone.now()
        start = query.get("start") or end - timedelta(hours=1)
        if start >= end:
            raise ValidationError({"start": ["Must be before end."]})
        instance = instance_named(instance_name(request))
        return Response(history.client_samples(instance, name, start, end, query["step"]))


class DecisionsView(PagedView):
    """Decisions of an instance."""

    pagination_class = MembersCursorPagination
    of_members = MemberSource.STORED
    needs = {"GET": Permission.VIEW}

    @extend_schema(
        parameters=[InstanceQuerySerializer, *filter_parameters(DecisionFilter)],
        responses=DecisionSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List decisions on clients, newest first."""
        found = history.decisions(instance_named(instance_name(request)), patterns=visible_patterns(request))
        return self.page(filtered(DecisionFilter, request, found), DecisionSerializer)
