"""Serializers of messages of topics."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.document_serializers import serializer_for
from api.serializers.policies import StrictSerializer
from broker_core.documents.journals import BrowsedPage


class BrowseSerializer(serializers.Serializer[Any]):
    """Selection of messages, by default from the oldest on. `from` and `to` are moments."""

    filter = serializers.CharField(max_length=4096, required=False, default="")
    bookmark = serializers.CharField(
        max_length=4096, required=False, default="", help_text="Continue after this position; see `next`."
    )
    to = serializers.DateTimeField(required=False)
    limit = serializers.IntegerField(min_value=1, max_value=1_000, required=False, default=100)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Return the fields, with `from`, which cannot be declared because it is a Python keyword."""
        return {**super().get_fields(), "from": serializers.DateTimeField(required=False)}


MessagesSerializer = serializer_for(BrowsedPage)


class PublishSerializer(StrictSerializer):
    """Message to publish, as JSON."""

    # DRF removes declared fields from the class, so the base class's attribute of that name stays.
    data = serializers.JSONField()  # type: ignore[assignment]
    reason = serializers.CharField(max_length=500, required=False, default="", allow_blank=True)
