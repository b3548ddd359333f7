"""Clients, their history, and decisions."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from console.models import Decision
from console.queries.clients import SORT_FIELDS


class SubscriptionSerializer(serializers.Serializer[Any]):
    """One subscription of a client."""

    id = serializers.CharField()
    topic = serializers.CharField()
    filter = serializers.CharField(allow_null=True)
    bookmark = serializers.CharField(allow_null=True)
    state = serializers.CharField()
    delivered_messages = serializers.IntegerField()
    lag_messages = serializers.IntegerField()
    ack = serializers.CharField(allow_null=True, help_text="auto, client, client-individual, or null without.")
    prefetch = serializers.IntegerField(allow_null=True)
    unacked_messages = serializers.IntegerField()
    durable = serializers.CharField(allow_null=True, help_text="Name of the durable subscription it is.")
    lease_ms = serializers.IntegerField(allow_null=True)
    lost_messages = serializers.IntegerField()


class ForecastSerializer(serializers.Serializer[Any]):
    """The limit a client comes to first."""

    rule = serializers.CharField()
    setting = serializers.CharField()
    action = serializers.CharField()
    mode = serializers.CharField()
    signal = serializers.CharField()
    value = serializers.IntegerField()
    limit = serializers.IntegerField()
    percent = serializers.FloatField(help_text="Of the limit, used now.")
    per_second = serializers.FloatField()
    fires_in_ms = serializers.IntegerField(allow_null=True, help_text="Null when there is no honest time.")


class WhySlowSerializer(serializers.Serializer[Any]):
    """One verdict with its evidence."""

    cause = serializers.CharField()
    sentence = serializers.CharField()
    evidence = serializers.DictField(child=serializers.IntegerField())


class ClientSerializer(serializers.Serializer[Any]):
    """A client as its broker sees it now. Moments are ms UTC. Only documents the shape: the answer is the broker's."""

    name = serializers.CharField()
    transport = serializers.CharField()
    protocol = serializers.CharField()
    remote = serializers.CharField()
    user = serializers.CharField(allow_null=True)
    state = serializers.ChoiceField(["live", "replaying", "offlined", "draining"])
    connected_at = serializers.IntegerField()
    lag_messages = serializers.IntegerField()
    lag_bytes = serializers.IntegerField()
    lag_ms = serializers.IntegerField(help_text="Age of the oldest message that waits.")
    outbox_bytes = serializers.IntegerField()
    outbox_messages = serializers.IntegerField()
    spool_bytes = serializers.IntegerField()
    spool_messages = serializers.IntegerField()
    offlined_since = serializers.IntegerField(allow_null=True)
    delivered_messages = serializers.IntegerField()
    delivered_bytes = serializers.IntegerField()
    published_messages = serializers.IntegerField()
    rate_out_messages = serializers.FloatField()
    write_blocked_ms = serializers.IntegerField()
    pool = serializers.CharField()
    memory_percent = serializers.FloatField()
    disk_percent = serializers.FloatField()
    revision = serializers.IntegerField(help_text="The policy revision the client is held to.")
    matched_messages = serializers.IntegerField(help_text="For it: delivered, lost, and still waiting.")
    lost_messages = serializers.IntegerField(help_text="In the loss ledger.")
    unacked_messages = serializers.IntegerField()
    window_full_ms = serializers.IntegerField(help_text="How long a window of its subscriptions has been full.")
    held_bytes = serializers.IntegerField(help_text="Waiting for acknowledgements, or held by a policy.")
    forecast = ForecastSerializer(allow_null=True)
    why_slow = WhySlowSerializer(allow_null=True)
    last_decision = serializers.DictField(allow_null=True)
    subscriptions = SubscriptionSerializer(many=True)


class ClientQuerySerializer(serializers.Serializer[Any]):
    """What a list of clients is filtered and sorted by."""

    state = serializers.CharField(required=False, default="")
    transport = serializers.CharField(required=False, default="")
    search = serializers.CharField(required=False, default="", help_text="Part of the client's name.")
    sort = serializers.ChoiceField(
        [*SORT_FIELDS, *(f"-{name}" for name in SORT_FIELDS)], required=False, default="name"
    )
    instance = serializers.CharField(required=False, default="")


class DisconnectSerializer(serializers.Serializer[Any]):
    """Why a client is disconnected; the client is told."""

    reason = serializers.CharField(max_length=500)


class ActSerializer(serializers.Serializer[Any]):
    """Why a client is paused, resumed or offlined, for the audit; and which of its subscriptions, none being all."""

    reason = serializers.CharField(max_length=500, required=False, default="", allow_blank=True)
    subscription = serializers.CharField(
        max_length=128, required=False, default="", allow_blank=True, help_text="Of pause and resume."
    )


class HistoryQuerySerializer(serializers.Serializer[Any]):
    """A time range; the last hour unless said otherwise."""

    start = serializers.DateTimeField(required=False)
    end = serializers.DateTimeField(required=False)
    step = serializers.IntegerField(required=False, default=10, min_value=1, max_value=86_400)


class SampleSerializer(serializers.Serializer[Any]):
    """The worst values of one step; `at` is seconds UTC."""

    at = serializers.IntegerField()
    state = serializers.CharField()
    lag_messages = serializers.IntegerField()
    lag_bytes = serializers.IntegerField()
    lag_ms = serializers.IntegerField()
    outbox_bytes = serializers.IntegerField()
    spool_bytes = serializers.IntegerField()


class InstanceQuerySerializer(serializers.Serializer[Any]):
    """Another instance than this installation's own."""

    instance = serializers.CharField(required=False, default="")


class DecisionSerializer(serializers.ModelSerializer[Decision]):
    """One explained act on a client."""

    revision = serializers.IntegerField()  # the model's own range depends on the database

    class Meta:
        model = Decision
        fields = [
            "id", "at", "client", "transport", "pool", "action", "reason", "rule", "revision", "mode", "signal",
            "observed", "limit", "unit", "sentence", "details",
        ]  # fmt: skip
