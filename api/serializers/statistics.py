"""Figures over time."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.document_serializers import serializer_of
from console.live import seconds_ring
from console.queries.missing_members import MissingMember
from console.queries.statistics import DELAYS, KINDS


class StatisticsQuerySerializer(serializers.Serializer[Any]):
    """What, and when; the last quarter of an hour unless said otherwise. `from` and `to` are moments, `step` seconds."""

    of = serializers.ChoiceField(KINDS, default="instance")
    name = serializers.CharField(
        max_length=64, required=False, default="", help_text="Needed unless `of` is instance."
    )
    to = serializers.DateTimeField(required=False)
    step = serializers.IntegerField(required=False, default=1, min_value=1, max_value=86_400)
    instance = serializers.CharField(max_length=64, required=False, default="")
    member = serializers.CharField(
        max_length=64, required=False, default="", help_text="Of a group; not of a client."
    )

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """`from` is a word of Python's, and can't be declared as the others are."""
        return {**super().get_fields(), "from": serializers.DateTimeField(required=False)}


class PointSerializer(serializers.Serializer[Any]):
    """The highest figures of one step; `at` is seconds UTC. A client has lag and bytes, a place rates and pools."""

    at = serializers.IntegerField()
    state = serializers.CharField(required=False)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """The figures are those that rings keep, and how long messages took."""
        names = dict.fromkeys((*(name for kind in seconds_ring.NUMBERS.values() for name in kind), *DELAYS))
        return {
            **super().get_fields(),
            **{name: serializers.FloatField(required=False, allow_null=True) for name in names},
        }


class SeriesSerializer(serializers.Serializer[Any]):
    """Figures over time. `source` says how fine they were kept: seconds, samples (10 s), minutes or hours."""

    of = serializers.CharField()
    name = serializers.CharField()
    # DRF takes declared fields out of the class: the attribute of its base stays.
    source = serializers.ChoiceField(["seconds", "samples", "minutes", "hours"])  # type: ignore[assignment]
    step = serializers.IntegerField()
    points = PointSerializer(many=True)
    missing = serializer_of(MissingMember)(many=True)
