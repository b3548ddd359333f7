"""A serializer that takes what it knows and nothing else."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses keys it doesn't know: a misspelt setting must not pass for a change that was made."""

    def to_internal_value(self, data: Any) -> Any:
        """DRF's, after a look for unknown keys."""
        if isinstance(data, dict) and (unknown := sorted(map(str, set(data) - set(self.fields)))):
            raise serializers.ValidationError({name: ["There is no such setting."] for name in unknown})
        return super().to_internal_value(data)


class ConfirmationSerializer(StrictSerializer):
    """A change of the policy, whose warnings may be confirmed."""

    confirmed = serializers.BooleanField(
        required=False, default=False,
        help_text="Make the change although its preview has warnings. Without it, nothing is done.",
    )  # fmt: skip
