"""Serializers of managed replays."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.document_serializers import serializer_for
from api.serializers.policies import StrictSerializer
from console.models.replay import REPLAY_STATES
from console.queries.replays import ReplayView


class ReplayQuerySerializer(serializers.Serializer[Any]):
    """Filter of managed replays."""

    state = serializers.ChoiceField(REPLAY_STATES, required=False, default="")


class RateSerializer(StrictSerializer):
    """Rate of a replay. Null means as fast as the client reads."""

    rate = serializers.CharField(
        max_length=64, allow_null=True, help_text="1000 (messages/s), 500KB (bytes/s), 2X."
    )
    rate_max_gap = serializers.CharField(
        max_length=64,
        required=False,
        allow_null=True,
        default=None,
        help_text="Longest pause of a rate such as 2X, for example 10s.",
    )


class NewReplaySerializer(StrictSerializer):
    """Request to create a managed replay for a client."""

    name = serializers.CharField(max_length=64)
    client = serializers.CharField(max_length=64, help_text="The client that will subscribe with this name.")
    topic = serializers.CharField(max_length=1024)
    filter = serializers.CharField(max_length=4096, required=False, default="")
    bookmark = serializers.CharField(
        max_length=4096, required=False, default="0", help_text="A bookmark, a moment, or a range."
    )
    rate = serializers.CharField(max_length=64, required=False, default="")
    rate_max_gap = serializers.CharField(max_length=64, required=False, default="")
    conflation = serializers.CharField(max_length=64, required=False, default="")
    conflation_key = serializers.CharField(max_length=1024, required=False, default="")
    paused = serializers.BooleanField(required=False, default=False)


ReplaySerializer = serializer_for(ReplayView)
