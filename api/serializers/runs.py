"""Serializers of journal segments, journal actions and runs."""

from __future__ import annotations

from typing import Any, Literal

from rest_framework import serializers

from api.document_serializers import serializer_for
from api.serializers.policies import StrictSerializer
from broker_core.documents.journals import SegmentEntry
from console.models import ActionRun
from console.queries import run_redaction
from console.services.actors import access_of_request

SegmentSerializer = serializer_for(SegmentEntry)


IN_LAKE = "Remove only segments that the lake has, by counts and checksums of its files."


class JournalActionSerializer(StrictSerializer):
    """Request to archive, compress or remove segments older than `age`."""

    age = serializers.CharField(max_length=40, help_text="Age such as 7d, 1h30m or 45s, or in seconds.")
    dry_run = serializers.BooleanField(
        required=False, default=False, help_text="Only report the planned changes."
    )
    in_lake = serializers.BooleanField(required=False, default=False, help_text=IN_LAKE)
    plan = serializers.CharField(
        max_length=64,
        required=False,
        default="",
        allow_blank=True,
        help_text="Hash of the plan. Required for `remove`, optional for the others.",
    )


class JournalApplySerializer(StrictSerializer):
    """Plan to carry out."""

    age = serializers.CharField(max_length=40)
    plan = serializers.CharField(max_length=64, help_text="The hash of the plan.")
    in_lake = serializers.BooleanField(required=False, default=False, help_text="As in the plan.")


class SkippedSerializer(serializers.Serializer[Any]):
    """Segment that an action skips."""

    name = serializers.CharField()
    why = serializers.CharField()
    reason = serializers.CharField(
        help_text=(
            "current, archived, compressed, young, gap, or the reader that needs it: replay, "
            "spool, managed_replay, …"
        )
    )


class PlanSerializer(serializers.Serializer[Any]):
    """Plan of a journal action: the segments that it would change now."""

    action = serializers.CharField()
    age = serializers.CharField()
    age_s = serializers.IntegerField()
    chosen = serializers.ListField(child=serializers.CharField())
    segments = serializers.ListField(
        child=serializers.DictField(),
        help_text="For each selected segment: name, bytes, records, first_sequence, last_sequence.",
    )
    archive_directory = serializers.CharField()
    skipped = SkippedSerializer(many=True)
    bytes = serializers.IntegerField()
    hash = serializers.CharField(required=False, help_text="Hash that `apply` and `remove` compare.")


class PipelineSerializer(StrictSerializer):
    """Options of a pipeline job, by name without leading dashes."""

    options = serializers.DictField(
        child=serializers.CharField(max_length=1000), required=False, default=dict
    )


class RunSerializer(serializers.ModelSerializer[ActionRun]):
    """Run: one execution of an action."""

    # DRF removes declared fields from the class, so the base class's attribute of that name stays.
    instance = serializers.CharField(source="instance.name")  # type: ignore[assignment]
    action = serializers.IntegerField(source="action_id", allow_null=True)

    duration_ms = serializers.SerializerMethodField()
    withheld = serializers.SerializerMethodField(
        help_text="Parts that the caller lacks the permission to see: messages, clients."
    )

    class Meta:
        model = ActionRun
        fields = [
            "id",
            "instance",
            "member",
            "kind",
            "parameters",
            "trigger",
            "state",
            "progress",
            "step",
            "plan",
            "plan_hash",
            "steps",
            "result",
            "error",
            "log",
            "actor",
            "actor_kind",
            "causes",
            "approver",
            "action",
            "due_at",
            "repeats",
            "cancel_requested",
            "created_at",
            "started_at",
            "ended_at",
            "duration_ms",
            "withheld",
        ]

    def to_representation(self, run: ActionRun) -> dict[str, Any]:
        """Return the run without the parts that the caller must not see.

        The serializer's context must have the `request`.
        """
        document: dict[str, Any] = super().to_representation(
            run_redaction.redact_run(run, access_of_request(self.context["request"]))
        )
        return document

    def get_withheld(self, run: ActionRun) -> list[Literal["messages", "clients"]]:
        """Return the redacted parts; usually empty."""
        return run.withheld  # type: ignore[attr-defined,no-any-return]

    def get_duration_ms(self, run: ActionRun) -> int | None:
        """Return the milliseconds from start to end, or null before the end."""
        return (
            round((run.ended_at - run.started_at).total_seconds() * 1000)
            if run.started_at and run.ended_at
            else None
        )
