"""Serializers of statistics over time."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.document_serializers import serializer_for
from console.live import seconds_ring
from console.queries.missing_members import MissingMember
from console.queries.statistics import DELAYS, KINDS


class StatisticsQuerySerializer(serializers.Serializer[Any]):
    """Subject and time range of statistics, by default the last 15 minutes.

    `from` and `to` are moments; `step` is in seconds.
    """

    of = serializers.ChoiceField(KINDS, default="instance")
    name = serializers.CharField(
        max_length=64, required=False, default="", help_text="Required unless `of` is instance."
    )
    to = serializers.DateTimeField(required=False)
    step = serializers.IntegerField(required=False, default=1, min_value=1, max_value=86_400)
    instance = serializers.CharField(max_length=64, required=False, default="")
    member = serializers.CharField(
        max_length=64, required=False, default="", help_text="Member of a group; not available for a client."
    )

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Return the fields, with `from`, which cannot be declared because it is a Python keyword."""
        return {**super().get_fields(), "from": serializers.DateTimeField(required=False)}


class PointSerializer(serializers.Serializer[Any]):
    """Highest values within one step. `at` is in seconds since the epoch, UTC.

    A client has lag and bytes; a transport, pool or instance has rates and pool usage.
    """

    at = serializers.IntegerField()
    state = serializers.CharField(required=False)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Return the declared fields, the recorded figures and the latency percentiles."""
        names = dict.fromkeys((*(name for kind in seconds_ring.NUMBERS.values() for name in kind), *DELAYS))
        return {
            **super().get_fields(),
            **{name: serializers.FloatField(required=False, allow_null=True) for name in names},
        }


class SeriesSerializer(serializers.Serializer[Any]):
    """Statistics over time.

    `source` names the resolution of the stored data: seconds, samples (10 s), minutes or hours.
    """

    of = serializers.CharField()
    name = serializers.CharField()
    # DRF removes declared fields from the class, so the base class's attribute of that name stays.
    source = serializers.ChoiceField(["seconds", "samples", "minutes", "hours"])  # type: ignore[assignment]
    step = serializers.IntegerField()
    points = PointSerializer(many=True)
    missing = serializer_for(MissingMember)(many=True)
