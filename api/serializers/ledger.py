"""Serializers of losses and durable subscriptions."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.document_serializers import serializer_for
from broker_core.delivery.account import DiscardCause
from broker_core.documents.replays import DurableEntry
from console.models import LossRecord


class LossQuerySerializer(serializers.Serializer[Any]):
    """Filter of the loss ledger."""

    client = serializers.CharField(required=False, default="")
    subscription = serializers.CharField(required=False, default="")
    cause = serializers.ChoiceField([cause.value for cause in DiscardCause], required=False, default="")
    rule = serializers.CharField(required=False, default="")
    since = serializers.DateTimeField(required=False)
    instance = serializers.CharField(required=False, default="")


class LossSerializer(serializers.ModelSerializer[LossRecord]):
    """Interval of messages that a subscription did not get. `first` and `last` are bookmarks.

    `exact`: each record from `first` to `last` is one of the messages. Otherwise both are outer bounds.
    """

    class Meta:
        model = LossRecord
        fields = [
            "id",
            "at",
            "client",
            "subscription",
            "topic",
            "cause",
            "rule",
            "messages",
            "bytes",
            "unjournaled",
            "first",
            "last",
            "exact",
        ]


DurableSerializer = serializer_for(DurableEntry)
