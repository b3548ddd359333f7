"""Clients as their broker sees them now, their history, and decisions on them."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from api.auth import actor_of
from api.serializers.clients import (
    ActSerializer,
    ClientQuerySerializer,
    ClientSerializer,
    DecisionSerializer,
    DisconnectSerializer,
    HistoryQuerySerializer,
    InstanceQuerySerializer,
    SampleSerializer,
)
from api.views.base import PagedView, instance_name, patterns_of, read
from api.views.lists import filtered, query_of
from console.choices import Permission
from console.queries import clients, history, live
from console.queries.filters import DecisionFilter
from console.queries.policies import in_force, instance_named
from console.services import clients as services


class StatusView(APIView):
    """The broker."""

    needs = {"GET": Permission.VIEW}

    @extend_schema(responses={200: dict})
    def get(self, request: Request) -> Response:
        """Rates, totals, pools, transports and the journal; 503 while the broker is away."""
        instance = instance_named(instance_name(request))
        return Response({**live.status(instance.name), "in_force": in_force(instance)})


class ClientsView(PagedView):
    """All clients."""

    needs = {"GET": Permission.VIEW}

    @extend_schema(parameters=[ClientQuerySerializer], responses=ClientSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Logged-on clients, filtered, sorted and in pages: lag, state, offlined since, spool, policy revision."""
        asked = read(ClientQuerySerializer, request.query_params)
        return self.page(
            clients.Clients(
                asked["instance"] or None,
                state=asked["state"],
                transport=asked["transport"],
                search=asked["search"],
                sort=asked["sort"],
                patterns=patterns_of(request),
            )
        )


class ClientView(APIView):
    """One client."""

    needs = {"GET": Permission.VIEW}
    scope = {"client": "name"}

    @extend_schema(responses=ClientSerializer)
    def get(self, request: Request, name: str) -> Response:
        """A client with its subscriptions."""
        return Response(clients.client(name, instance_name(request)))


class DisconnectView(APIView):
    """Disconnecting."""

    needs = {"POST": Permission.ACT_ON_CLIENTS}
    scope = {"client": "name"}

    @extend_schema(request=DisconnectSerializer, responses={200: dict})
    def post(self, request: Request, name: str) -> Response:
        """Disconnect a client; it is told the reason."""
        asked = read(DisconnectSerializer, request.data)
        result = services.disconnect(actor_of(request), name, asked["reason"], instance_name(request))
        return Response({"name": name, "disconnected": True, "result": result})


class ActView(APIView):
    """Pausing, resuming and offlining."""

    needs = {"POST": Permission.ACT_ON_CLIENTS}
    scope = {"client": "name"}
    word = ""
    """Of `console.services.clients.act`."""

    @extend_schema(request=ActSerializer, responses={200: dict})
    def post(self, request: Request, name: str) -> Response:
        """Pause or resume a client's subscriptions, or move what waits for it to its spool."""
        asked = read(ActSerializer, request.data)
        return Response(services.act(
            actor_of(request), self.word, name, asked["reason"], instance_name(request),
            "" if self.word == "offline" else asked["subscription"],
        ))  # fmt: skip


class ClientHistoryView(APIView):
    """How a client fared."""

    needs = {"GET": Permission.VIEW}
    scope = {"client": "name"}

    @extend_schema(parameters=[HistoryQuerySerializer], responses=SampleSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """Samples every ten seconds, or the worst of each longer step; an idle client has one a minute."""
        asked = read(HistoryQuerySerializer, request.query_params)
        end = asked.get("end") or timezone.now()
        start = asked.get("start") or end - timedelta(hours=1)
        if start >= end:
            raise ValidationError({"start": ["Must be before end."]})
        instance = instance_named(instance_name(request))
        return Response(history.client_samples(instance, name, start, end, asked["step"]))


class DecisionsView(PagedView):
    """Decisions."""

    needs = {"GET": Permission.VIEW}

    @extend_schema(parameters=[InstanceQuerySerializer, *query_of(DecisionFilter)], responses=DecisionSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Decisions on clients, newest first."""
        found = history.decisions(instance_named(instance_name(request)), patterns=patterns_of(request))
        return self.page(filtered(DecisionFilter, request, found), DecisionSerializer)
