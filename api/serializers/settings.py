"""Serializers of preset settings: AMPS, XAP, ActiveMQ, Qpid. The presets' tables define the fields."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from api.serializers.strict import StrictSerializer
from broker_core.config.preset_settings import PresetField, SettingType, Table
from broker_core.config.rule_terms import EnforcementMode

OPTIONAL: dict[str, Any] = {"required": False, "allow_null": True}
"""Options of a field that may be absent or null."""


class SettingsSerializer(StrictSerializer):
    """Serializer with the declared fields and those of `table`. Each may be absent or null."""

    table: ClassVar[Table] = {}
    """Settings by name."""

    def get_fields(self) -> dict[str, Any]:
        """Return the declared fields, followed by the fields of `table`."""
        return {**super().get_fields(), **{name: preset_field(row) for name, row in self.table.items()}}


def preset_field(row: PresetField) -> serializers.Field[Any, Any, Any, Any]:
    """Return a serializer field for a setting.

    Bounds, unit, help text and default come from its table row.
    """
    options = {**OPTIONAL, "help_text": row.help_text + (f" Unit: {row.unit}." if row.unit else "")}
    match row.kind:
        case SettingType.INTEGER:
            return serializers.IntegerField(min_value=row.low, max_value=row.high, **options)
        case SettingType.DECIMAL:
            return serializers.FloatField(min_value=row.low, max_value=row.high, **options)
        case SettingType.FLAG | SettingType.CONFIRMATION:
            return serializers.BooleanField(**options)
        case SettingType.MODE:
            return serializers.ChoiceField(choices=[str(mode) for mode in EnforcementMode], **options)
        case SettingType.PATH:
            return serializers.CharField(max_length=1_024, **options)
