"""The console's forms, tables, rows and importers use the preset tables for other systems' settings."""

from __future__ import annotations

from typing import Any

import pytest
from django import forms
from django.core.exceptions import ValidationError

from broker_core.config.preset_settings import (
    ACTIVEMQ,
    AMPS,
    PRESETS,
    QPID,
    QUOTAS,
    XAP,
    PresetField,
    SettingType,
    Table,
)
from console.forms.draft_part import DraftPartForm
from console.forms.limits import InstanceLimitsForm, LimitsForm
from console.forms.presets import ActiveMqForm, QpidForm, QuotaForm, XapForm
from console.forms.transports import TransportLimitsForm
from console.models import ClientPolicy, PolicyDraft, PoolPolicy
from console.services import policy_import
from console.units.labels import mode_label
from console.views.draft_tables import tables

FORMS = [(XapForm, XAP), (ActiveMqForm, ACTIVEMQ), (QpidForm, QPID), (QuotaForm, QUOTAS)]
NUMBERS = (SettingType.INTEGER, SettingType.DECIMAL)


@pytest.mark.parametrize(("form", "table"), FORMS)
def test_a_form_has_the_settings_with_their_bounds_and_meanings(
    form: type[DraftPartForm], table: Table
) -> None:
    fields = {
        name: field
        for name, field in form.base_fields.items()
        if name not in ("topic", "user", "transport", "expected_version")
    }
    assert set(fields) == set(table)
    for name, row in table.items():
        assert fields[name].help_text == row.help_text
        assert form.WORDS.get(name, "") == row.word
        if row.kind in NUMBERS:
            assert (fields[name].min_value, fields[name].max_value) == (row.low, row.high)
    assert {name for _, group in form.GROUPS for name in group} >= set(table)


@pytest.mark.parametrize("form", [LimitsForm, InstanceLimitsForm, TransportLimitsForm])
def test_the_limits_have_the_words_and_meanings_of_amps(form: type[LimitsForm]) -> None:
    for name, row in AMPS.items():
        assert form.base_fields[name].help_text == row.help_text
        assert form.WORDS[name] == row.word
    capacity = form.base_fields["client_max_capacity"]
    assert isinstance(capacity, forms.IntegerField)
    assert (capacity.min_value, capacity.max_value) == (1, 100)


@pytest.mark.parametrize(
    "row", [row for row in AMPS.values() if row.kind is SettingType.INTEGER], ids=lambda row: row.name
)
def test_a_row_of_the_database_is_held_to_the_bounds(row: PresetField) -> None:
    model = (
        PoolPolicy if row.name in {field.name for field in PoolPolicy._meta.get_fields()} else ClientPolicy
    )
    field = model._meta.get_field(row.name)
    field.run_validators(row.low)
    with pytest.raises(ValidationError):
        field.run_validators(row.low - 1)
    if row.high == 100:
        field.run_validators(row.high)
        with pytest.raises(ValidationError):
            field.run_validators(row.high + 1)


@pytest.mark.parametrize(
    ("part", "entry", "said"),
    [
        ("xap", {"throughput": 1000}, "slow-consumer.throughput 1000 bytes/s"),
        ("activemq", {"topic": "a", "abort_connection": True}, "abortConnection true"),
        ("qpid", {"topic": "a", "message_age": 500}, "messageAge 500 ms"),
        ("qpid", {"topic": "a", "depht": 5}, "depht 5"),
    ],
)
def test_a_drafts_table_says_settings_in_their_words_and_units(
    part: str, entry: dict[str, Any], said: str
) -> None:
    draft = PolicyDraft(document={part: [entry]})
    cells = [dict(row["cells"]) for table in tables(draft) for row in table["rows"]]
    assert [cell["Settings"] for cell in cells] == [[said]]
    assert [cell["Mode"] for cell in cells] == [[mode_label(PRESETS[part]["mode"].default)]]


def test_a_drafts_table_says_whom_a_quota_is_for() -> None:
    draft = PolicyDraft(
        document={"quotas": [{"user_topics": 5}, {"user": "maria", "client_publish_rate": 9}]}
    )
    cells = [dict(row["cells"]) for table in tables(draft) for row in table["rows"]]
    assert [cell["For"] for cell in cells] == [["everybody"], ["user maria"]]
    assert [cell["Settings"] for cell in cells] == [
        ["user_topics 5 topics"],
        ["client_publish_rate 9 messages/s"],
    ]


def sample(row: PresetField) -> str:
    """Return a value as a configuration file contains it. Flags are "false", because importing
    `delete_persistent` needs a confirmation.
    """
    return "false" if row.kind is SettingType.FLAG else str(max(row.low, 2))


def written(system: str, row: PresetField) -> str:
    """Return a configuration file of this system that sets the row."""
    word, value = row.word, sample(row)
    if system == "amps":
        return (
            f"<AMPSConfig><{word}>{'/spool' if row.kind is SettingType.PATH else value}</{word}></AMPSConfig>"
        )
    if system == "xap":
        return f"com.gs.transport_protocol.lrmi.{word}={value}\n"
    if system == "qpid":
        inner = f"<{word}>{value}</{word}>"
        if row.kind is SettingType.FLAG:
            inner = f'<depth>2</depth><policy name="Delete"><option name="{word}" value="{value}"/></policy>'
        return f'<x><topic key="a"><consumer>{inner}</consumer></topic></x>'
    if word == "topicPrefetch":
        return f'<x><policyEntry topic="a" {word}="{value}"/></x>'
    element, _, attribute = word.partition(" ")
    if attribute:
        inner = (
            f'<pendingMessageLimitStrategy><{element} {attribute}="{value}"/></pendingMessageLimitStrategy>'
        )
    else:
        of_acks = word in ("abortSlowAckConsumerStrategy", "maxTimeSinceLastAck")
        element = "abortSlowAckConsumerStrategy" if of_acks else "abortSlowConsumerStrategy"
        given = "" if word == element else f'{word}="{value}"'
        inner = f"<slowConsumerStrategy><{element} {given}/></slowConsumerStrategy>"
    return f'<x><policyEntry topic="a">{inner}</policyEntry></x>'


@pytest.mark.parametrize(
    ("system", "row"),
    [(system, row) for system, table in PRESETS.items() for row in table.values() if row.word],
    ids=lambda given: getattr(given, "name", given),
)
def test_an_importer_reads_every_setting_by_its_word(system: str, row: PresetField) -> None:
    imported = policy_import.import_policy(system, written(system, row))
    parts = (
        [imported.document.get(key, {}) for key in ("pool", "client_policy")]
        if system == "amps"
        else imported.document[system]
    )
    assert imported.skipped == []
    if (
        row is QPID["delete_persistent"]
    ):  # false is the default: it is imported, but the policy needs no line for it
        assert {f"name={row.word}", "value=false"} <= {one.what for one in imported.imported}
    else:
        assert [row.name in part for part in parts].count(True) == 1
    assert {name for part in parts for name in part} - {"topic"} <= set(PRESETS[system])
