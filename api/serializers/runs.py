"""Journals, runs, schedules and the audit."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils import timezone
from rest_framework import serializers

from api.serializers.policies import StrictSerializer
from console.models import ActionRun, AuditEvent, Schedule
from console.services.schedules import next_due_at


class SegmentSerializer(serializers.Serializer[Any]):
    """One file of the journal. Moments are ns UTC. Only documents the shape: the answer is the broker's."""

    name = serializers.CharField()
    path = serializers.CharField()
    state = serializers.ChoiceField(["current", "sealed", "archived"])
    compressed = serializers.BooleanField()
    first_sequence = serializers.IntegerField()
    last_sequence = serializers.IntegerField()
    first_at = serializers.IntegerField()
    last_at = serializers.IntegerField()
    bytes = serializers.IntegerField()
    records = serializers.IntegerField()
    pinned_by = serializers.ListField(child=serializers.CharField())


class JournalActionSerializer(StrictSerializer):
    """What to do with which segments."""

    age = serializers.CharField(max_length=40, help_text="Like 7d, 1h30m, 45s, or seconds.")
    dry_run = serializers.BooleanField(required=False, default=False, help_text="Only say what would be done.")


class SkippedSerializer(serializers.Serializer[Any]):
    """A segment that an action leaves alone."""

    name = serializers.CharField()
    why = serializers.CharField()


class PlanSerializer(serializers.Serializer[Any]):
    """What an action would do."""

    action = serializers.CharField()
    age = serializers.CharField()
    age_s = serializers.IntegerField()
    chosen = serializers.ListField()
    skipped = SkippedSerializer(many=True)
    bytes = serializers.IntegerField()


class PipelineSerializer(StrictSerializer):
    """Options of a pipeline job, by name without the dashes."""

    options = serializers.DictField(child=serializers.CharField(max_length=1000), required=False, default=dict)


class RunQuerySerializer(serializers.Serializer[Any]):
    """What runs are filtered by."""

    kind = serializers.CharField(required=False, default="")
    state = serializers.CharField(required=False, default="")


class RunSerializer(serializers.ModelSerializer[ActionRun]):
    """One execution of an action."""

    instance = serializers.CharField(source="instance.name")
    schedule = serializers.CharField(source="schedule.name", default=None, allow_null=True)

    class Meta:
        model = ActionRun
        fields = [
            "id", "instance", "kind", "parameters", "state", "progress", "step", "plan", "result", "error", "log",
            "actor", "actor_kind", "schedule", "due_at", "cancel_requested", "created_at", "started_at", "ended_at",
        ]  # fmt: skip


class ScheduleSerializer(serializers.ModelSerializer[Schedule]):
    """When an action is due, UTC; weekday 0 is Monday, null is every day."""

    next_due_at = serializers.SerializerMethodField()

    class Meta:
        model = Schedule
        fields = ["name", "kind", "parameters", "weekday", "hour", "minute", "enabled", "next_due_at"]

    def get_next_due_at(self, schedule: Schedule) -> datetime | None:
        """The next firing, null while switched off."""
        return next_due_at(schedule, timezone.now()) if schedule.enabled else None


class AuditQuerySerializer(serializers.Serializer[Any]):
    """What audit events are filtered by."""

    actor = serializers.CharField(required=False, default="")
    object = serializers.CharField(required=False, default="")
    result = serializers.CharField(required=False, default="")
    since = serializers.DateTimeField(required=False)


class AuditSerializer(serializers.ModelSerializer[AuditEvent]):
    """One attempt to change something."""

    class Meta:
        model = AuditEvent
        fields = [
            "id", "at", "actor_kind", "actor", "action", "object", "before", "after", "reason", "result", "message",
            "source", "request_id",
        ]  # fmt: skip
