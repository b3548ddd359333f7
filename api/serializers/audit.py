"""Serializer of audit events."""

from __future__ import annotations

from rest_framework import serializers

from console.models import AuditEvent


class AuditSerializer(serializers.ModelSerializer[AuditEvent]):
    """Audit event: one attempt to change something, and its result."""

    class Meta:
        model = AuditEvent
        fields = [
            "id",
            "at",
            "actor_kind",
            "actor",
            "action",
            "object",
            "before",
            "after",
            "reason",
            "result",
            "message",
            "source",
            "request_id",
            "expires_at",
        ]
