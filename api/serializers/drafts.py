"""Serializers of policy drafts, their previews, imports, and staged rollouts."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.document_serializers import serializer_for
from api.serializers.policy_entries import DocumentField
from api.serializers.strict import ConfirmationSerializer, StrictSerializer
from broker_core.documents.instance import PolicyEffect
from console.services.policy_files import MAX_SENT, SYSTEMS
from console.services.policy_import.variables import MAX_VALUE


class DraftSummarySerializer(serializers.Serializer[Any]):
    """Draft of a policy, without its document."""

    id = serializers.IntegerField()
    title = serializers.CharField()
    base = serializers.IntegerField()
    version = serializers.IntegerField()
    author = serializers.CharField()
    created_at = serializers.DateTimeField()
    changed_at = serializers.DateTimeField()


class DraftSerializer(DraftSummarySerializer):
    """Draft of a policy. Its ETag is `version`."""

    document = DocumentField()


class DraftWriteSerializer(StrictSerializer):
    """Request to create a draft.

    Its content is `document`, or the document of an older `revision`; without both, that of the newest
    revision.
    """

    title = serializers.CharField(max_length=200, required=False, default="")
    document = serializers.DictField(required=False)
    revision = serializers.IntegerField(min_value=1, required=False)


class DraftPatchSerializer(StrictSerializer):
    """Changes to a draft.

    Objects are merged key by key; lists are replaced. `transports` may be an object by name, in which null
    removes a transport.
    """

    title = serializers.CharField(max_length=200, required=False)
    changes = serializers.DictField(required=False, default=dict)


class ImportSerializer(StrictSerializer):
    """Configuration file to import.

    `system` "yaml" is Sluice's own format. Settings of the other systems are applied on top of the newest
    revision.
    """

    system = serializers.ChoiceField(choices=SYSTEMS)
    text = serializers.CharField(max_length=MAX_SENT, trim_whitespace=False)
    title = serializers.CharField(max_length=200, required=False, default="")
    values = serializers.DictField(
        child=serializers.CharField(allow_blank=True, max_length=MAX_VALUE),
        required=False,
        default=dict,
        help_text="Values of variables in the file, such as ${NAME}, by name.",
    )


class UnrelatedSettingSerializer(serializers.Serializer[Any]):
    """Setting of an imported file that does not concern a policy.

    `where` is its position in the file's structure, `line` counts from 1, and `what` is its value (a secret
    reads "set").
    """

    where = serializers.CharField()
    line = serializers.IntegerField()
    what = serializers.CharField()


class ImportedSettingSerializer(UnrelatedSettingSerializer):
    """Setting that was imported. `into` names the resulting setting of the policy."""

    into = serializers.CharField()


class SkippedSettingSerializer(UnrelatedSettingSerializer):
    """Setting that was not imported. `why` gives the reason."""

    why = serializers.CharField()


class ImportedActionSerializer(serializers.Serializer[Any]):
    """Action that the import created. It is disabled."""

    id = serializers.IntegerField()
    name = serializers.CharField()


class ImportReportSerializer(serializers.Serializer[Any]):
    """Result of an import.

    Each setting of the file is in exactly one of the three lists. For Sluice's own YAML they are empty.
    """

    draft = DraftSerializer()
    actions = ImportedActionSerializer(many=True)
    taken = ImportedSettingSerializer(many=True, source="imported.imported")
    left_out = SkippedSettingSerializer(many=True, source="imported.skipped")
    not_about_policy = UnrelatedSettingSerializer(many=True, source="imported.unrelated")
    warnings = serializers.ListField(
        child=serializers.CharField(),
        help_text="Topics that the file would no longer journal, and its variables without values.",
    )


class RolloutPlanSerializer(StrictSerializer):
    """Plan of a staged rollout.

    `client` or `share` (percent) selects the clients that get the policy first. At most `most_decisions`
    decisions on them are carried out; the next one restores the previous revision.
    """

    client = serializers.CharField(max_length=64, required=False, default="")
    share = serializers.IntegerField(min_value=1, max_value=99, required=False, allow_null=True, default=None)
    most_decisions = serializers.IntegerField(min_value=0, max_value=1_000_000, required=False, default=0)


class DraftPublishSerializer(ConfirmationSerializer):
    """Reason for publishing a draft, and the plan of a staged rollout."""

    reason = serializers.CharField(max_length=500, allow_blank=True, required=False, default="")
    rollout = RolloutPlanSerializer(required=False, allow_null=True, default=None)


class DraftPreviewSerializer(StrictSerializer):
    """Plan of a staged rollout to preview, as in publishing."""

    rollout = RolloutPlanSerializer(required=False, allow_null=True, default=None)


class RolloutStopSerializer(ConfirmationSerializer):
    """Reason for stopping a rollout."""

    reason = serializers.CharField(max_length=500, allow_blank=True, required=False, default="")


class DocumentChangeSerializer(serializers.Serializer[Any]):
    """Setting that differs from the newest revision."""

    path = serializers.CharField()
    before = serializers.CharField()
    after = serializers.CharField()


class FindingSerializer(serializers.Serializer[Any]):
    """Questionable setting in a policy, and how to fix it."""

    severity = serializers.CharField()
    where = serializers.CharField()
    sentence = serializers.CharField()
    fix = serializers.CharField()


class PreviewSerializer(serializers.Serializer[Any]):
    """Effect that publishing a draft would have.

    `effect` is null while the broker is unavailable, and when there are problems. In a group it lacks the
    clients of members that did not answer; `away` names these members and the reason.
    """

    problems = serializers.ListField(child=serializers.CharField())
    differences = DocumentChangeSerializer(many=True)
    findings = FindingSerializer(many=True)
    effect = serializer_for(PolicyEffect)(allow_null=True)
    away = serializers.CharField()


class RolloutSerializer(serializers.Serializer[Any]):
    """Staged rollout of a revision and its state."""

    revision = serializers.IntegerField(source="revision.number")
    base = serializers.IntegerField(source="base.number")
    client = serializers.CharField()
    share = serializers.IntegerField(allow_null=True)
    most_decisions = serializers.IntegerField()
    allowances = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="Share of most_decisions for each member of a group, by its name.",
    )
    decisions = serializers.IntegerField(
        help_text="Number of decisions that the staged revision has carried out."
    )
    state = serializers.CharField()
    why = serializers.CharField()
    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
