"""Managed replays."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.serializers.policies import StrictSerializer
from console.models.replay import REPLAY_STATES


class ReplayQuerySerializer(serializers.Serializer[Any]):
    """What replays are filtered by."""

    state = serializers.ChoiceField(REPLAY_STATES, required=False, default="")


class RateSerializer(StrictSerializer):
    """How fast. Null is as fast as the client reads."""

    rate = serializers.CharField(max_length=64, allow_null=True, help_text="1000 (messages/s), 500KB (bytes/s), 2X.")
    rate_max_gap = serializers.CharField(
        max_length=64, required=False, allow_null=True, default=None, help_text="Longest wait of a multiple, like 10s."
    )


class NewReplaySerializer(StrictSerializer):
    """What to replay, to which client."""

    name = serializers.CharField(max_length=64)
    client = serializers.CharField(max_length=64, help_text="The client that will subscribe with this name.")
    topic = serializers.CharField(max_length=1024)
    filter = serializers.CharField(max_length=4096, required=False, default="")
    bookmark = serializers.CharField(max_length=4096, required=False, default="0", help_text="A bookmark, a moment, or a range.")
    rate = serializers.CharField(max_length=64, required=False, default="")
    rate_max_gap = serializers.CharField(max_length=64, required=False, default="")
    conflation = serializers.CharField(max_length=64, required=False, default="")
    conflation_key = serializers.CharField(max_length=1024, required=False, default="")
    paused = serializers.BooleanField(required=False, default=False)


class ReplaySerializer(serializers.Serializer[Any]):
    """One managed replay. Moments are ms UTC. Only documents the shape: the answer is the broker's."""

    name = serializers.CharField()
    client = serializers.CharField()
    topic = serializers.CharField()
    filter = serializers.CharField(allow_null=True)
    bookmark = serializers.CharField(help_text="What was asked for.")
    rate = serializers.CharField(allow_null=True)
    rate_max_gap = serializers.CharField(allow_null=True)
    conflation = serializers.CharField(allow_null=True)
    conflation_key = serializers.CharField(allow_null=True)
    state = serializers.ChoiceField(REPLAY_STATES)
    connected = serializers.BooleanField()
    position = serializers.CharField(help_text="The bookmark it goes on after.")
    behind = serializers.IntegerField(help_text="Records of the log that are left.")
    delivered_messages = serializers.IntegerField()
    progress = serializers.FloatField(help_text="0 to 1.")
    left_s = serializers.FloatField(allow_null=True, help_text="Seconds left at this pace; null: can't be said.")
    records_per_s = serializers.FloatField()
    recorded_at = serializers.IntegerField(allow_null=True, help_text="Where it is on the recorded timeline.")
    created_at = serializers.IntegerField()
    ended_at = serializers.IntegerField(allow_null=True)
    reported_at = serializers.IntegerField(allow_null=True, help_text="Null: now. Else the broker is away since about then.")
    author = serializers.CharField()
