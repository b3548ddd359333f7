"""Serializers that reject unknown fields."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class StrictSerializer(serializers.Serializer[Any]):
    """Serializer that rejects unknown keys.

    Otherwise a request with a misspelt setting would succeed without changing anything.
    """

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated data. Raises ValidationError for unknown keys."""
        if isinstance(data, dict) and (unknown := sorted(map(str, set(data) - set(self.fields)))):
            raise serializers.ValidationError({name: ["The setting doesn't exist."] for name in unknown})
        return super().to_internal_value(data)


class ConfirmationSerializer(StrictSerializer):
    """Change of the policy, with a confirmation of its warnings."""

    confirmed = serializers.BooleanField(
        required=False,
        default=False,
        help_text="Apply the change despite the warnings of its preview. Without it, the API applies no "
        "change.",
    )
