"""Serializers of clients, their history, and decisions."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.document_serializers import serializer_for
from api.serializers.policies import PolicyStatusSerializer
from broker_core.documents import client_columns
from broker_core.documents.clients import ClientEntry, DeliveryState, EffectiveSetting, ForecastEntry, Health
from broker_core.documents.instance import InstanceStatus
from console.models import Decision
from console.queries.missing_members import MissingMember

ClientSerializer = serializer_for(ClientEntry)
EffectiveSettingSerializer = serializer_for(EffectiveSetting)
ForecastSerializer = serializer_for(ForecastEntry)


class StatusSerializer(serializer_for(InstanceStatus)):  # type: ignore[misc]
    """Status that a broker reports, and whether the policy is in force there."""

    in_force = PolicyStatusSerializer()
    missing = serializer_for(MissingMember)(many=True)


class SortField(serializers.ChoiceField):
    """Column to sort by. A leading "-" sorts in descending order."""

    def __init__(self, **options: Any) -> None:
        fields = client_columns.sort_fields()
        super().__init__(
            [*fields, *(f"-{name}" for name in fields)],
            default=client_columns.DEFAULT_SORT,
            required=False,
            **options,
        )


class ClientQuerySerializer(serializers.Serializer[Any]):
    """Filter and sort order of a list of clients."""

    delivery = serializers.ChoiceField([one.value for one in DeliveryState], required=False, default="")
    health = serializers.ChoiceField([one.value for one in Health], required=False, default="")
    transport = serializers.CharField(max_length=64, required=False, default="")
    search = serializers.CharField(
        max_length=64,
        required=False,
        default="",
        help_text="Part of the client's name, transport, address or user.",
    )
    sort = SortField(help_text="Equal entries are sorted by descending lag, then by name.")
    instance = serializers.CharField(required=False, default="")


class DisconnectSerializer(serializers.Serializer[Any]):
    """Reason for disconnecting a client. The broker sends it to the client."""

    reason = serializers.CharField(max_length=500)


class ActSerializer(serializers.Serializer[Any]):
    """Reason for pausing, resuming or offlining a client, for the audit log.

    `subscription` restricts the action to one subscription; empty means all.
    """

    reason = serializers.CharField(max_length=500, required=False, default="", allow_blank=True)
    subscription = serializers.CharField(
        max_length=128, required=False, default="", allow_blank=True, help_text="Only for pause and resume."
    )


class HistoryQuerySerializer(serializers.Serializer[Any]):
    """Time range of samples, by default the last hour. `step` is in seconds."""

    start = serializers.DateTimeField(required=False)
    end = serializers.DateTimeField(required=False)
    step = serializers.IntegerField(required=False, default=10, min_value=1, max_value=86_400)


class SampleSerializer(serializers.Serializer[Any]):
    """Worst values of a client within one step. `at` is in seconds since the epoch, UTC."""

    at = serializers.IntegerField()
    state = serializers.CharField()
    lag_messages = serializers.IntegerField()
    lag_bytes = serializers.IntegerField()
    lag_ms = serializers.IntegerField()
    outbox_bytes = serializers.IntegerField()
    spool_bytes = serializers.IntegerField()
    rate_out_messages = serializers.FloatField(allow_null=True)


class InstanceQuerySerializer(serializers.Serializer[Any]):
    """Instance other than this installation's own."""

    instance = serializers.CharField(required=False, default="")


class DecisionSerializer(serializers.ModelSerializer[Decision]):
    """Decision: one explained action of a rule on a client."""

    revision = serializers.IntegerField()  # the model field's range depends on the database

    class Meta:
        model = Decision
        fields = [
            "id",
            "at",
            "member",
            "client",
            "transport",
            "pool",
            "action",
            "reason",
            "rule",
            "revision",
            "mode",
            "signal",
            "observed",
            "limit",
            "unit",
            "sentence",
            "details",
        ]
