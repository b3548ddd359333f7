"""Drafts of policies, their previews, and staged rollouts."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.document_serializers import serializer_of
from api.serializers.policy_entries import DocumentField
from api.serializers.strict import ConfirmationSerializer, StrictSerializer
from broker_core.documents.instance import PolicyEffect
from console.services.policy_files import MAX_SENT, SYSTEMS


class DraftSummarySerializer(serializers.Serializer[Any]):
    """A draft in a list."""

    id = serializers.IntegerField()
    title = serializers.CharField()
    base = serializers.IntegerField()
    version = serializers.IntegerField()
    author = serializers.CharField()
    created_at = serializers.DateTimeField()
    changed_at = serializers.DateTimeField()


class DraftSerializer(DraftSummarySerializer):
    """A draft; its ETag is `version`."""

    document = DocumentField()


class DraftWriteSerializer(StrictSerializer):
    """A draft of the newest revision, or with the document of an older `revision`, or of `document`."""

    title = serializers.CharField(max_length=200, required=False, default="")
    document = serializers.DictField(required=False)
    revision = serializers.IntegerField(min_value=1, required=False)


class DraftPatchSerializer(StrictSerializer):
    """Objects key by key, lists whole; `transports` may be an object by name, where null takes one away."""

    title = serializers.CharField(max_length=200, required=False)
    changes = serializers.DictField(required=False, default=dict)


class ImportSerializer(StrictSerializer):
    """A configuration file: `yaml` is Sluice's own, the others are laid over the newest revision."""

    system = serializers.ChoiceField(choices=SYSTEMS)
    text = serializers.CharField(max_length=MAX_SENT, trim_whitespace=False)
    title = serializers.CharField(max_length=200, required=False, default="")


class UnrelatedSettingSerializer(serializers.Serializer[Any]):
    """A setting of an imported file: where it stands, its line (from 1), and what it says (a secret's value reads "set")."""

    where = serializers.CharField()
    line = serializers.IntegerField()
    what = serializers.CharField()


class ImportedSettingSerializer(UnrelatedSettingSerializer):
    """A setting that was taken over, and into what."""

    into = serializers.CharField()


class SkippedSettingSerializer(UnrelatedSettingSerializer):
    """A setting that wasn't taken over, and why."""

    why = serializers.CharField()


class ImportedActionSerializer(serializers.Serializer[Any]):
    """An action that was made, and is switched off."""

    id = serializers.IntegerField()
    name = serializers.CharField()


class ImportReportSerializer(serializers.Serializer[Any]):
    """What an import made. Each setting of the file is in one of the three lists; YAML of our own has none."""

    draft = DraftSerializer()
    actions = ImportedActionSerializer(many=True)
    taken = ImportedSettingSerializer(many=True, source="imported.imported")
    left_out = SkippedSettingSerializer(many=True, source="imported.skipped")
    not_about_policy = UnrelatedSettingSerializer(many=True, source="imported.unrelated")
    warnings = serializers.ListField(
        child=serializers.CharField(),
        help_text="What the file would take away: topics that it no longer journals.",
    )


class RolloutPlanSerializer(StrictSerializer):
    """Whom first, and after how many decisions on them the revision before is restored."""

    client = serializers.CharField(max_length=64, required=False, default="")
    share = serializers.IntegerField(min_value=1, max_value=99, required=False, allow_null=True, default=None)
    most_decisions = serializers.IntegerField(min_value=0, max_value=1_000_000, required=False, default=0)


class DraftPublishSerializer(ConfirmationSerializer):
    """Why, and for whom first."""

    reason = serializers.CharField(max_length=500, allow_blank=True, required=False, default="")
    rollout = RolloutPlanSerializer(required=False, allow_null=True, default=None)


class DraftPreviewSerializer(StrictSerializer):
    """For whom first, as in publishing."""

    rollout = RolloutPlanSerializer(required=False, allow_null=True, default=None)


class RolloutStopSerializer(ConfirmationSerializer):
    """Reason for the end of a rollout."""

    reason = serializers.CharField(max_length=500, allow_blank=True, required=False, default="")


class DocumentChangeSerializer(serializers.Serializer[Any]):
    """One setting that differs from the newest revision."""

    path = serializers.CharField()
    before = serializers.CharField()
    after = serializers.CharField()


class FindingSerializer(serializers.Serializer[Any]):
    """Something unwise in a policy."""

    severity = serializers.CharField()
    where = serializers.CharField()
    sentence = serializers.CharField()
    fix = serializers.CharField()


class PreviewSerializer(serializers.Serializer[Any]):
    """What publishing would do. `effect` is null while the broker is away, or when there are problems.

    Of a group, `effect` lacks the clients of members that didn't answer; `away` says which and why.
    """

    problems = serializers.ListField(child=serializers.CharField())
    differences = DocumentChangeSerializer(many=True)
    findings = FindingSerializer(many=True)
    effect = serializer_of(PolicyEffect)(allow_null=True)
    away = serializers.CharField()


class RolloutSerializer(serializers.Serializer[Any]):
    """A staged rollout."""

    revision = serializers.IntegerField(source="revision.number")
    base = serializers.IntegerField(source="base.number")
    client = serializers.CharField()
    share = serializers.IntegerField(allow_null=True)
    most_decisions = serializers.IntegerField()
    allowances = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="The part of most_decisions that each member of a group may carry out, by its name.",
    )
    decisions = serializers.IntegerField(help_text="Carried out by the staged revision so far.")
    state = serializers.CharField()
    why = serializers.CharField()
    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
