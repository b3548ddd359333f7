"""The API accepts preset settings within the limits of their tables, and its schema describes them."""

from __future__ import annotations

import pytest
from rest_framework import serializers

from api.serializers.policies import ClientPolicySerializer, PoolSerializer
from api.serializers.policy_entries import ActiveMqEntrySerializer, QpidEntrySerializer, XapEntrySerializer
from api.serializers.settings import SettingsSerializer
from broker_core.config.preset_settings import ACTIVEMQ, AMPS_CLIENT, AMPS_POOL, QPID, XAP, SettingType, Table

SERIALIZERS = [
    (PoolSerializer, AMPS_POOL),
    (ClientPolicySerializer, AMPS_CLIENT),
    (XapEntrySerializer, XAP),
    (ActiveMqEntrySerializer, ACTIVEMQ),
    (QpidEntrySerializer, QPID),
]


@pytest.mark.parametrize(("serializer", "table"), SERIALIZERS)
def test_its_fields_are_the_tables(serializer: type[SettingsSerializer], table: Table) -> None:
    fields = {
        name: field for name, field in serializer().fields.items() if name not in ("topic", "transport")
    }
    assert list(fields) == list(table)
    for name, row in table.items():
        assert str(fields[name].help_text).startswith(row.help_text)
        assert fields[name].allow_null
        assert not fields[name].required


@pytest.mark.parametrize(("serializer", "table"), SERIALIZERS)
def test_numbers_are_held_to_the_bounds(serializer: type[SettingsSerializer], table: Table) -> None:
    for name, row in table.items():
        if row.kind in (SettingType.INTEGER, SettingType.DECIMAL):
            field: serializers.Field = serializer().fields[name]  # type: ignore[type-arg]
            assert [field.run_validation(value) for value in (row.low, row.high)] == [row.low, row.high]
            for value in (row.low - 1, row.high + 1):
                with pytest.raises(serializers.ValidationError):
                    field.run_validation(value)


def test_a_misspelt_setting_is_refused() -> None:
    asked = XapEntrySerializer(data={"throughputs": 1})
    assert not asked.is_valid()
    assert "throughputs" in asked.errors
