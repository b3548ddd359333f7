"""Actions: their definition, plans, firings."""

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
    """A trigger, condition or step: its kind under `on`, `if` or `do`, and its options as texts."""

    child = serializers.JSONField()


class ActionWriteSerializer(StrictSerializer):
    """What of an action can be set; docs/operators-guide.md has the kinds and their options."""

    name = serializers.CharField(max_length=100)
    description = serializers.CharField(max_length=500, required=False, allow_blank=True)
    when = serializers.ListField(child=PartField(), required=False, max_length=20)
    steps = serializers.ListField(child=PartField(), max_length=50)
    enabled = serializers.BooleanField(required=False)
    missed = serializers.ChoiceField(MissedRunPolicy.choices, required=False)
    needs_approval = serializers.BooleanField(required=False)


class ActionPatchSerializer(ActionWriteSerializer):
    """The same for a change: what is absent stays."""

    name = serializers.CharField(max_length=100, required=False)
    steps = serializers.ListField(child=PartField(), max_length=50, required=False)


class ActionSerializer(serializers.ModelSerializer[Action]):
    """An action."""

    # DRF takes declared fields out of the class: the attribute of its base stays.
    instance = serializers.CharField(source="instance.name")  # type: ignore[assignment]
    when = serializers.ListField(child=PartField())
    steps = serializers.ListField(child=PartField())
    version = serializers.IntegerField()  # the model's own range depends on the database
    destructive = serializers.SerializerMethodField()
    next_firings = serializers.SerializerMethodField()
    last_state = serializers.CharField(default=None, allow_null=True)
    last_at = serializers.DateTimeField(default=None, allow_null=True)

    class Meta:
        model = Action
        fields = [
            "id", "instance", "name", "description", "when", "steps", "enabled", "missed", "needs_approval", "version",
            "destructive", "next_firings", "last_state", "last_at", "changed_at", "changed_by",
        ]  # fmt: skip

    def get_destructive(self, action: Action) -> bool:
        """Whether one of its steps takes something away: then a run by hand needs a plan's hash."""
        return is_destructive(action.steps)

    @extend_schema_field(serializers.ListField(child=serializers.DateTimeField()))
    def get_next_firings(self, action: Action) -> list[datetime]:
        """The next five, of all its schedules."""
        return next_firings(action, timezone.now())


class ScheduleSerializer(serializers.ModelSerializer[Action]):
    """A scheduled action, and when it is due next."""

    action = serializers.IntegerField(source="pk")
    every = serializers.SerializerMethodField()
    next_due_at = serializers.SerializerMethodField()

    class Meta:
        model = Action
        fields = ["action", "name", "every", "missed", "enabled", "next_due_at"]

    def get_every(self, action: Action) -> list[str]:
        """The schedules as they were written."""
        return [trigger["every"] for trigger, _ in action_schedules(action)]

    def get_next_due_at(self, action: Action) -> datetime | None:
        """The next firing, null while switched off."""
        return next(iter(next_firings(action, timezone.now(), 1)), None)


class RunRequestSerializer(StrictSerializer):
    """What a run of an action is asked for with."""

    parameters = serializers.DictField(
        child=serializers.CharField(max_length=65_536, allow_blank=True), required=False, default=dict
    )
    plan = serializers.CharField(
        max_length=64, required=False, default="", allow_blank=True, help_text="The hash of the plan."
    )


class ActionPlanSerializer(serializers.Serializer[Any]):
    """What an action would do now, step by step."""

    steps = serializers.ListField(child=serializers.DictField())
    destructive = serializers.BooleanField()
    hash = serializers.CharField()


class EventPlanSerializer(serializers.Serializer[Any]):
    """Plans of the actions that a custom event would start now, and one hash of them all."""

    actions = serializers.ListField(child=serializers.DictField())
    destructive = serializers.BooleanField()
    hash = serializers.CharField()


class RepeatSerializer(StrictSerializer):
    """Request to repeat a run."""

    plan = serializers.CharField(
        max_length=64, required=False, default="", allow_blank=True,
        help_text="The hash of the plan of what is left, which plan_needed gives.",
    )  # fmt: skip


class FiringsQuerySerializer(serializers.Serializer[Any]):
    """A schedule to try."""

    every = serializers.CharField(max_length=100)


class FiringsSerializer(serializers.Serializer[Any]):
    """Its next five firings."""

    zone = serializers.CharField()
    firings = serializers.ListField(child=serializers.DateTimeField())
