"""Serializers of policies and transports.

Absent keys keep their values; null restores the default or the instance's value.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.serializers.policy_entries import (
    DocumentField,
    EntriesSerializer,
    TlsSerializer,
    TransportAccessSerializer,
)
from api.serializers.settings import SettingsSerializer
from api.serializers.strict import ConfirmationSerializer, StrictSerializer
from broker_core.config.instance import MAX_DOWNGRADE_MS, MAX_SYNC_MEMBERS, MIN_DOWNGRADE_MS
from broker_core.config.preset_settings import AMPS_CLIENT, AMPS_POOL
from broker_core.config.transports import MAX_BODY, MIN_BODY, ResumeFrom

__all__ = ["ConfirmationSerializer", "StrictSerializer"]


class PoolSerializer(SettingsSerializer):
    """Limits of a pool, which clients share."""

    table = AMPS_POOL


class ClientPolicySerializer(SettingsSerializer):
    """Limits of one client."""

    table = AMPS_CLIENT


@extend_schema_field(
    {"oneOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}]}
)
class JournaledTopicField(serializers.Field[Any, Any, Any, Any]):
    """Topic pattern, or an object that describes a journaled topic. Services check its content."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the value unchanged. Raises ValidationError for other JSON types."""
        if not isinstance(data, (str, dict)):
            raise serializers.ValidationError("Use a topic pattern or an object.")
        return data

    def to_representation(self, value: Any) -> Any:
        """Return the value unchanged."""
        return value


class JournalSettingsSerializer(StrictSerializer):
    """Journaled topics, and settings of the journal's files."""

    journaled_topics = serializers.ListField(
        child=JournaledTopicField(),
        required=False,
        help_text=(
            "Patterns, or objects {topic, message_type, filter, separator}; message_type is json, fix, "
            "nvfix, "
            "msgpack or binary."
        ),
    )
    unjournaled_topics = serializers.ListField(child=serializers.CharField(max_length=255), required=False)
    journal_size = serializers.IntegerField(min_value=1024 * 1024, required=False)
    preallocated_files = serializers.IntegerField(min_value=1, max_value=64, required=False)
    journal_directory = serializers.CharField(max_length=1024, allow_null=True, required=False)
    archive_directory = serializers.CharField(max_length=1024, allow_null=True, required=False)
    sync_members = serializers.ListField(
        child=serializers.CharField(max_length=64),
        max_length=MAX_SYNC_MEMBERS,
        required=False,
        help_text="Members of a group for which `fully_durable` waits.",
    )
    sync_topics = serializers.ListField(
        child=serializers.CharField(max_length=255),
        required=False,
        help_text="Patterns of topics whose `persisted` also waits for the sync members of a group.",
    )
    downgrade_after_ms = serializers.IntegerField(
        min_value=MIN_DOWNGRADE_MS,
        max_value=MAX_DOWNGRADE_MS,
        required=False,
        help_text="Time after which the broker stops waiting for a sync member or destination that "
        "doesn't confirm.",
    )


class TransportChangeSerializer(ConfirmationSerializer, TransportAccessSerializer):
    """Changed settings of a transport."""

    host = serializers.CharField(max_length=255, required=False)
    port = serializers.IntegerField(min_value=0, max_value=65_535, required=False)
    enabled = serializers.BooleanField(required=False)
    resume = serializers.ChoiceField(choices=list(ResumeFrom), required=False)
    max_body = serializers.IntegerField(
        min_value=MIN_BODY, max_value=MAX_BODY, allow_null=True, required=False
    )
    pool = PoolSerializer(required=False)
    client_policy = ClientPolicySerializer(required=False)
    reason = serializers.CharField(max_length=500, allow_blank=True, required=False, default="")


class PolicyChangeSerializer(ConfirmationSerializer, EntriesSerializer):
    """Changed settings of the instance's policy."""

    instance = JournalSettingsSerializer(required=False)
    pool = PoolSerializer(required=False)
    client_policy = ClientPolicySerializer(required=False)
    reason = serializers.CharField(max_length=500, allow_blank=True, required=False, default="")


class TransportSerializer(serializers.Serializer[Any]):
    """Transport as the policy defines it, and its running state.

    `running` is null while the broker is unavailable.
    """

    name = serializers.CharField()
    kind = serializers.CharField()
    host = serializers.CharField()
    port = serializers.IntegerField()
    enabled = serializers.BooleanField()
    pool = PoolSerializer()
    client_policy = ClientPolicySerializer()
    authentication = serializers.CharField()
    restricted = serializers.BooleanField()
    origins = serializers.ListField(child=serializers.CharField())
    tls = TlsSerializer(allow_null=True)
    resume = serializers.CharField()
    max_body = serializers.IntegerField(allow_null=True)
    running = serializers.DictField(allow_null=True, required=False)


class PolicyStatusSerializer(serializers.Serializer[Any]):
    """Revision that should be in force (`wanted`), and the revision that the broker reported (`running`)."""

    instance = serializers.CharField()
    member = serializers.CharField(allow_blank=True)
    wanted = serializers.IntegerField()
    running = serializers.IntegerField(allow_null=True)
    converged = serializers.BooleanField()
    set_back = serializers.BooleanField(
        help_text="Whether the broker retains a policy that this database lacks, until an operator decides."
    )
    staged = serializers.CharField(allow_blank=True)
    reported_at = serializers.DateTimeField(allow_null=True)
    why = serializers.CharField(allow_blank=True)


class PolicySerializer(serializers.Serializer[Any]):
    """Policy document that should be in force, and whether it is."""

    revision = serializers.IntegerField()
    document = DocumentField()
    in_force = PolicyStatusSerializer()


class RevisionSerializer(serializers.Serializer[Any]):
    """Immutable revision of a policy."""

    number = serializers.IntegerField()
    author = serializers.CharField()
    reason = serializers.CharField(allow_blank=True)
    created_at = serializers.DateTimeField()
    withdrawn = serializers.CharField(
        help_text="Reason for the automatic withdrawal of its staged rollout; empty without a withdrawal."
    )
    document = DocumentField()


class PolicyChangeResultSerializer(serializers.Serializer[Any]):
    """Result of a policy change: the new revision, and whether every running broker put it in force."""

    revision = serializers.IntegerField(source="revision.number")
    document = DocumentField(source="revision.document")
    applied = serializers.BooleanField()
    problem = serializers.CharField(allow_blank=True)
    withdrawn = serializers.CharField(
        allow_blank=True,
        help_text="Why the rollout of this staged revision has already ended automatically; empty otherwise.",
    )
    findings = serializers.SerializerMethodField()

    @extend_schema_field({"type": "array", "items": {"type": "object"}})
    def get_findings(self, change: Any) -> list[dict[str, str]]:
        """Return questionable but valid settings, each with `severity`, `where`, `sentence` and `fix`."""
        return [{key: str(value) for key, value in one._asdict().items()} for one in change.findings]
