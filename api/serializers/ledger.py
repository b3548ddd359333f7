"""Losses and durable subscriptions."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from broker_core.delivery import Cause
from console.models import Loss


class LossQuerySerializer(serializers.Serializer[Any]):
    """What the ledger is filtered by."""

    client = serializers.CharField(required=False, default="")
    subscription = serializers.CharField(required=False, default="")
    cause = serializers.ChoiceField([cause.value for cause in Cause], required=False, default="")
    rule = serializers.CharField(required=False, default="")
    since = serializers.DateTimeField(required=False)
    instance = serializers.CharField(required=False, default="")


class LossSerializer(serializers.ModelSerializer[Loss]):
    """An interval of messages that a subscription did not get. `first` and `last` are bookmarks."""

    class Meta:
        model = Loss
        fields = [
            "id", "at", "client", "subscription", "topic", "cause", "rule", "messages", "bytes", "unjournaled",
            "first", "last",
        ]  # fmt: skip


class DurableSerializer(serializers.Serializer[Any]):
    """A durable subscription. Moments are ms UTC; `behind` counts records of the log, of all topics."""

    client = serializers.CharField()
    name = serializers.CharField()
    topic = serializers.CharField()
    filter = serializers.CharField(allow_null=True)
    bookmark = serializers.CharField(help_text="It goes on after this record.")
    connected = serializers.BooleanField()
    behind = serializers.IntegerField()
    created_at = serializers.IntegerField()
    seen_at = serializers.IntegerField()
