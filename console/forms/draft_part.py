"""Base class of forms for a draft's parts. They convert input to entries of the policy document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms

from broker_core.config.preset_settings import PresetField, SettingType, Table
from broker_core.config.rule_terms import EnforcementMode, Unit
from console.forms.fields import EnumField, FieldGroup, FieldRow, OptionalBooleanField, style_widget


class DraftPartForm(forms.Form):
    """Form of one part of a draft."""

    WORDS: Mapping[str, str] = {}
    """Names of settings in the documents of the system that they come from."""
    GROUPS: Sequence[tuple[str, tuple[str, ...]]] = ()
    """Headings and their fields, in display order."""

    expected_version = forms.IntegerField(widget=forms.HiddenInput)

    def __init__(self, *args: Any, transports: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "transport" in self.fields:
            current = self.initial.get("transport")
            names = [*transports, *([current] if current and current not in transports else [])]
            transport = self.fields["transport"]
            assert isinstance(transport, forms.ChoiceField)
            transport.choices = [("", "every transport"), *((name, name) for name in names)]
        for field in self.fields.values():
            style_widget(field)

    def groups(self) -> list[FieldGroup]:
        """Return the fields by heading, in display order."""
        return [
            FieldGroup(title, [FieldRow(self[name], self.WORDS.get(name, "")) for name in names])
            for title, names in self.GROUPS
        ]

    def entry(self) -> dict[str, Any]:
        """Return the entry of the policy document, without empty fields."""
        names = [name for _, group in self.GROUPS for name in group]
        return {name: value for name in names if (value := self.cleaned_data[name]) not in (None, "", [])}


def transport_field() -> forms.TypedChoiceField:
    """Return a field for a transport. The form sets its choices."""
    return forms.TypedChoiceField(label="Transport", required=False, empty_value=None)


def preset_field(row: PresetField, label: str) -> forms.Field:
    """Return the field of a preset's setting. Bounds, unit, help text and default come from its table row."""
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
    """Return the settings' names in their original system."""
    return {name: row.word for name, row in table.items() if row.word}


def mode_field(help_text: str) -> EnumField:
    """Return a field for the enforcement mode."""
    return EnumField([str(mode) for mode in EnforcementMode], label="Mode", help_text=help_text)


def integer_field(label: str, low: int, help_text: str) -> forms.IntegerField:
    """Return an optional whole-number field. `help_text` names its unit."""
    return forms.IntegerField(label=label, required=False, min_value=low, help_text=help_text)
