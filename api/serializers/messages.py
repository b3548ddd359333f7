"""Messages of topics."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.document_serializers import serializer_of
from api.serializers.policies import StrictSerializer
from broker_core.documents.journals import BrowsedPage


class BrowseSerializer(serializers.Serializer[Any]):
    """Which messages; from the oldest on unless said otherwise. `from` and `to` are moments."""

    filter = serializers.CharField(max_length=4096, required=False, default="")
    bookmark = serializers.CharField(
        max_length=4096, required=False, default="", help_text="Go on after this; see `next`."
    )
    to = serializers.DateTimeField(required=False)
    limit = serializers.IntegerField(min_value=1, max_value=1_000, required=False, default=100)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """`from` is a word of Python's, and can't be declared as the others are."""
        return {**super().get_fields(), "from": serializers.DateTimeField(required=False)}


MessagesSerializer = serializer_of(BrowsedPage)


class PublishSerializer(StrictSerializer):
    """A message, as JSON."""

    # DRF takes declared fields out of the class: the attribute of its base stays.
    data = serializers.JSONField()  # type: ignore[assignment]
    reason = serializers.CharField(max_length=500, required=False, default="", allow_blank=True)
