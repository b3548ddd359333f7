"""What the forms of a draft's parts share: they read what an operator types and give an entry of the policy document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms

from broker_core.config.preset_settings import PresetField, SettingType, Table
from broker_core.config.rule_terms import EnforcementMode, Unit
from console.forms.fields import EnumField, FieldGroup, FieldRow, OptionalBooleanField, style_widget


class DraftPartForm(forms.Form):
    """One part of a draft. `WORDS` are the settings' names in the documents they come from; the groups are in order."""

    WORDS: Mapping[str, str] = {}
    GROUPS: Sequence[tuple[str, tuple[str, ...]]] = ()

    expected_version = forms.IntegerField(widget=forms.HiddenInput)

    def __init__(self, *args: Any, transports: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "transport" in self.fields:
            given = self.initial.get("transport")
            names = [*transports, *([given] if given and given not in transports else [])]
            transport = self.fields["transport"]
            assert isinstance(transport, forms.ChoiceField)
            transport.choices = [("", "every transport"), *((name, name) for name in names)]
        for field in self.fields.values():
            style_widget(field)

    def groups(self) -> list[FieldGroup]:
        """Fields in the order and under the headings a page shows."""
        return [
            FieldGroup(title, [FieldRow(self[name], self.WORDS.get(name, "")) for name in names])
            for title, names in self.GROUPS
        ]

    def entry(self) -> dict[str, Any]:
        """The entry that was typed: what was left empty isn't in it."""
        names = [name for _, group in self.GROUPS for name in group]
        return {name: value for name in names if (value := self.cleaned_data[name]) not in (None, "", [])}


def transport_field() -> forms.TypedChoiceField:
    """Which transport; its names come with the form."""
    return forms.TypedChoiceField(label="Transport", required=False, empty_value=None)


def preset_field(row: PresetField, label: str) -> forms.Field:
    """The field of a preset's setting; bounds, unit, meaning and default are those of its table."""
    options: dict[str, Any] = {"label": label, "help_text": row.help_text}
    if row.kind is SettingType.MODE:
        return mode_field(row.help_text)
    if row.kind in (SettingType.FLAG, SettingType.CONFIRMATION):
        return OptionalBooleanField(**options)
    if row.unit not in ("", Unit.TIMES):
        options["label"] = f"{label}, {row.unit}"
    number = forms.FloatField if row.kind is SettingType.DECIMAL else forms.IntegerField
    return number(required=False, min_value=row.low, max_value=row.high, **options)


def setting_names(table: Table) -> dict[str, str]:
    """The settings' names in their own system."""
    return {name: row.word for name, row in table.items() if row.word}


def mode_field(help_text: str) -> EnumField:
    """Whether its decisions are carried out."""
    return EnumField([str(mode) for mode in EnforcementMode], label="Mode", help_text=help_text)


def integer_field(label: str, low: int, help_text: str) -> forms.IntegerField:
    """A whole number, in the unit that `help_text` says."""
    return forms.IntegerField(label=label, required=False, min_value=low, help_text=help_text)
