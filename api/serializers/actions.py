"""Serializers of actions, their plans and their scheduled firings."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.serializers.policies import StrictSerializer
from console.choices import MissedRunPolicy
from console.models import Action
from console.services.actions.definition import is_destructive
from console.services.actions.scheduler import action_schedules, next_firings


class PartField(serializers.DictField):
    """Trigger, condition or step: its type under `on`, `if` or `do`, and its options as texts."""

    child = serializers.JSONField()


class ActionWriteSerializer(StrictSerializer):
    """Fields of an action that a request can set. docs/operators-guide.md lists the types and their
    options.
    """

    name = serializers.CharField(max_length=100)
    description = serializers.CharField(max_length=500, required=False, allow_blank=True)
    when = serializers.ListField(child=PartField(), required=False, max_length=20)
    steps = serializers.ListField(child=PartField(), max_length=50)
    enabled = serializers.BooleanField(required=False)
    missed = serializers.ChoiceField(MissedRunPolicy.choices, required=False)
    needs_approval = serializers.BooleanField(required=False)


class ActionPatchSerializer(ActionWriteSerializer):
    """Changed fields of an action. Absent fields keep their values."""

    name = serializers.CharField(max_length=100, required=False)
    steps = serializers.ListField(child=PartField(), max_length=50, required=False)


class ActionSerializer(serializers.ModelSerializer[Action]):
    """Action (automation): its definition, state and next firings."""

    # DRF removes declared fields from the class, so the base class's attribute of that name stays.
    instance = serializers.CharField(source="instance.name")  # type: ignore[assignment]
    when = serializers.ListField(child=PartField())
    steps = serializers.ListField(child=PartField())
    version = serializers.IntegerField()  # the model field's range depends on the database
    destructive = serializers.SerializerMethodField()
    next_firings = serializers.SerializerMethodField()
    last_state = serializers.CharField(default=None, allow_null=True)
    last_at = serializers.DateTimeField(default=None, allow_null=True)

    class Meta:
        model = Action
        fields = [
            "id",
            "instance",
            "name",
            "description",
            "when",
            "steps",
            "enabled",
            "missed",
            "needs_approval",
            "version",
            "destructive",
            "next_firings",
            "last_state",
            "last_at",
            "changed_at",
            "changed_by",
        ]

    def get_destructive(self, action: Action) -> bool:
        """Return whether a step removes data. A manual run then needs the hash of a plan."""
        return is_destructive(action.steps)

    @extend_schema_field(serializers.ListField(child=serializers.DateTimeField()))
    def get_next_firings(self, action: Action) -> list[datetime]:
        """Return the next five firings of all schedules of the action."""
        return next_firings(action, timezone.now())


class ScheduleSerializer(serializers.ModelSerializer[Action]):
    """Scheduled action and its next firing."""

    action = serializers.IntegerField(source="pk")
    every = serializers.SerializerMethodField()
    next_due_at = serializers.SerializerMethodField()

    class Meta:
        model = Action
        fields = ["action", "name", "every", "missed", "enabled", "next_due_at"]

    def get_every(self, action: Action) -> list[str]:
        """Return the schedules as the operator entered them."""
        return [trigger["every"] for trigger, _ in action_schedules(action)]

    def get_next_due_at(self, action: Action) -> datetime | None:
        """Return the next firing, or null while the action is disabled."""
        return next(iter(next_firings(action, timezone.now(), 1)), None)


class RunRequestSerializer(StrictSerializer):
    """Parameters of a run of an action, and the hash of its plan."""

    parameters = serializers.DictField(
        child=serializers.CharField(max_length=65_536, allow_blank=True), required=False, default=dict
    )
    plan = serializers.CharField(
        max_length=64, required=False, default="", allow_blank=True, help_text="The hash of the plan."
    )


class ActionPlanSerializer(serializers.Serializer[Any]):
    """Plan of an action: the effect of each step if it ran now."""

    steps = serializers.ListField(child=serializers.DictField())
    destructive = serializers.BooleanField()
    hash = serializers.CharField()


class EventPlanSerializer(serializers.Serializer[Any]):
    """Plans of the actions that a custom event would start now, with one hash for all of them."""

    actions = serializers.ListField(child=serializers.DictField())
    destructive = serializers.BooleanField()
    hash = serializers.CharField()


class RepeatSerializer(StrictSerializer):
    """Request to repeat a run."""

    plan = serializers.CharField(
        max_length=64,
        required=False,
        default="",
        allow_blank=True,
        help_text="Hash of the plan of the remaining steps, from the error plan_needed.",
    )


class FiringsQuerySerializer(serializers.Serializer[Any]):
    """Schedule whose firings are requested."""

    every = serializers.CharField(max_length=100)


class FiringsSerializer(serializers.Serializer[Any]):
    """Next five firings of a schedule, and its time zone."""

    zone = serializers.CharField()
    firings = serializers.ListField(child=serializers.DateTimeField())
