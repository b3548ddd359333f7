"""Kinds of fields, and how a page groups them. What an operator types becomes a plain value here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django import forms

from console.units.parse import format_size, parse_interval, parse_size, write_interval

_FLAGS = (("", "not set here"), ("true", "true"), ("false", "false"))


class SizeField(forms.CharField):
    """Bytes; empty means the default."""

    def to_python(self, value: Any) -> Any:
        """ "1.5GiB" → 1610612736."""
        text = super().to_python(value)
        if not text:
            return None
        try:
            return parse_size(text)
        except ValueError as problem:
            raise forms.ValidationError("Write a size such as 512MiB, 2GB or 1073741824.") from problem

    def prepare_value(self, value: Any) -> Any:
        """The largest unit that writes it exactly."""
        return format_size(value) if isinstance(value, int) else value


class IntervalField(forms.CharField):
    """Milliseconds; empty means no limit."""

    def to_python(self, value: Any) -> Any:
        """ "30s" → 30000; a bare number is seconds."""
        text = super().to_python(value)
        if not text:
            return None
        if text.strip().replace(".", "", 1).isascii() and text.strip().replace(".", "", 1).isdigit():
            text = f"{text.strip()}s"
        try:
            return parse_interval(text)
        except ValueError as problem:
            raise forms.ValidationError(
                "Write an interval with its unit, such as 500ms, 30s, 10min or 1h."
            ) from problem

    def prepare_value(self, value: Any) -> Any:
        """The largest unit that writes it exactly."""
        return write_interval(value) if isinstance(value, int) else value


class PatternsField(forms.CharField):
    """Topic patterns, one a line."""

    widget = forms.Textarea(attrs={"rows": 3})

    def to_python(self, value: Any) -> Any:
        """Lines that aren't empty."""
        return [line.strip() for line in str(super().to_python(value) or "").splitlines() if line.strip()]

    def prepare_value(self, value: Any) -> Any:
        """A pattern a line."""
        return "\n".join(value) if isinstance(value, (list, tuple)) else value


class LinesField(PatternsField):
    """A text a line."""


class OptionalBooleanField(forms.TypedChoiceField):
    """True, false, or nothing: what a less specific entry says, and at last the default."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            choices=_FLAGS, required=False, coerce=lambda text: text == "true", empty_value=None, **options
        )

    def prepare_value(self, value: Any) -> Any:
        """The word of a stored value."""
        return {True: "true", False: "false", None: ""}.get(value, value)


class EnumField(forms.TypedChoiceField):
    """One of an enumeration's words, or nothing."""

    def __init__(self, words: Sequence[str], empty: str = "not set here", **options: Any) -> None:
        choices = [("", empty), *((str(word), str(word)) for word in words)]
        super().__init__(choices=choices, required=False, empty_value=None, **options)


def style_widget(field: forms.Field) -> None:
    """The classes of a field's widget."""
    widget = field.widget
    kind = "form-check-input" if isinstance(widget, forms.CheckboxInput) else "form-control"
    if isinstance(widget, forms.Select):
        kind = "form-select"
    widget.attrs.update({"class": kind, "autocomplete": "off", "spellcheck": "false"})


class FieldRow(NamedTuple):
    """A field as a page shows it: with the name that it has in AMPS's configuration."""

    field: forms.BoundField
    amps: str


class FieldGroup(NamedTuple):
    """Fields that belong together."""

    title: str
    fields: list[FieldRow]
