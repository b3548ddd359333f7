"""What the forms of a draft's parts share: they read what an operator types and give an entry of the policy document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms

from broker_core.config.vocabulary import Mode
from console.forms import Group, PatternsField, Row

_FLAGS = (("", "not set here"), ("true", "true"), ("false", "false"))


class FlagField(forms.TypedChoiceField):
    """True, false, or nothing: what a less specific entry says, and at last the default."""

    def __init__(self, **options: Any) -> None:
        super().__init__(choices=_FLAGS, required=False, coerce=lambda text: text == "true", empty_value=None, **options)

    def prepare_value(self, value: Any) -> Any:
        """The word of a stored value."""
        return {True: "true", False: "false", None: ""}.get(value, value)


class WordField(forms.TypedChoiceField):
    """One of an enumeration's words, or nothing."""

    def __init__(self, words: Sequence[str], empty: str = "not set here", **options: Any) -> None:
        choices = [("", empty), *((str(word), str(word)) for word in words)]
        super().__init__(choices=choices, required=False, empty_value=None, **options)


class LinesField(PatternsField):
    """A text a line."""


class PartForm(forms.Form):
    """One part of a draft. `WORDS` are the settings' names in the documents they come from; the groups are in order."""

    WORDS: Mapping[str, str] = {}
    GROUPS: Sequence[tuple[str, tuple[str, ...]]] = ()

    expected_version = forms.IntegerField(widget=forms.HiddenInput)

    def __init__(self, *args: Any, transports: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "transport" in self.fields:
            given = self.initial.get("transport")
            names = [*transports, *([given] if given and given not in transports else [])]
            self.fields["transport"].choices = [("", "every transport"), *((name, name) for name in names)]  # type: ignore[attr-defined]
        for field in self.fields.values():
            dress(field)

    def groups(self) -> list[Group]:
        """Fields in the order and under the headings a page shows."""
        return [Group(title, [Row(self[name], self.WORDS.get(name, "")) for name in names]) for title, names in self.GROUPS]

    def entry(self) -> dict[str, Any]:
        """The entry that was typed: what was left empty isn't in it."""
        names = [name for _, group in self.GROUPS for name in group]
        return {name: value for name in names if (value := self.cleaned_data[name]) not in (None, "", [])}


def dress(field: forms.Field) -> None:
    """The classes of a field's widget."""
    widget = field.widget
    kind = "form-check-input" if isinstance(widget, forms.CheckboxInput) else "form-control"
    if isinstance(widget, forms.Select):
        kind = "form-select"
    widget.attrs.update({"class": kind, "autocomplete": "off", "spellcheck": "false"})


def transport_field() -> forms.TypedChoiceField:
    """Which transport; its names come with the form."""
    return forms.TypedChoiceField(label="Transport", required=False, empty_value=None)


def mode_field(default: str) -> WordField:
    """Whether its decisions are carried out."""
    return WordField(
        [str(mode) for mode in Mode], label="Mode",
        help_text=f"In shadow its decisions are recorded and nothing is done. Default: {default}.",
    )  # fmt: skip


def whole(label: str, low: int, help_text: str) -> forms.IntegerField:
    """A whole number, in the unit that `help_text` says."""
    return forms.IntegerField(label=label, required=False, min_value=low, help_text=help_text)
