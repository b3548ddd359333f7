"""Types of form fields, which convert text to plain values, and groups of fields on a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django import forms

from console.units.parse import format_size, parse_interval, parse_size, write_interval

_FLAGS = (("", "not set here"), ("true", "true"), ("false", "false"))
"""Choices of an optional boolean."""


class SizeField(forms.CharField):
    """Field for a number of bytes. Empty means the default."""

    def to_python(self, value: Any) -> Any:
        """Return the bytes of a text like "1.5GiB" (1610612736), or None if empty."""
        text = super().to_python(value)
        if not text:
            return None
        try:
            return parse_size(text)
        except ValueError as problem:
            raise forms.ValidationError("Enter a size such as 512MiB, 2GB or 1073741824.") from problem

    def prepare_value(self, value: Any) -> Any:
        """Return a number of bytes as text in the largest exact unit."""
        return format_size(value) if isinstance(value, int) else value


class IntervalField(forms.CharField):
    """Field for a number of milliseconds. Empty means no limit."""

    def to_python(self, value: Any) -> Any:
        """Return the milliseconds of a text like "30s" (30000), or None if empty.

        A bare number means seconds.
        """
        text = super().to_python(value)
        if not text:
            return None
        if text.strip().replace(".", "", 1).isascii() and text.strip().replace(".", "", 1).isdigit():
            text = f"{text.strip()}s"
        try:
            return parse_interval(text)
        except ValueError as problem:
            raise forms.ValidationError(
                "Enter an interval with its unit, such as 500ms, 30s, 10min or 1h."
            ) from problem

    def prepare_value(self, value: Any) -> Any:
        """Return milliseconds as text in the largest exact unit."""
        return write_interval(value) if isinstance(value, int) else value


class PatternsField(forms.CharField):
    """Field for topic patterns, one per line."""

    widget = forms.Textarea(attrs={"rows": 3})

    def to_python(self, value: Any) -> Any:
        """Return the non-empty lines."""
        return [line.strip() for line in str(super().to_python(value) or "").splitlines() if line.strip()]

    def prepare_value(self, value: Any) -> Any:
        """Return the patterns as text, one per line."""
        return "\n".join(value) if isinstance(value, (list, tuple)) else value


class LinesField(PatternsField):
    """Field for texts, one per line."""


class OptionalBooleanField(forms.TypedChoiceField):
    """Field for true, false or no value.

    Without a value the less specific entry applies, and finally the default.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(
            choices=_FLAGS, required=False, coerce=lambda text: text == "true", empty_value=None, **options
        )

    def prepare_value(self, value: Any) -> Any:
        """Return the choice of a stored value."""
        return {True: "true", False: "false", None: ""}.get(value, value)


class EnumField(forms.TypedChoiceField):
    """Field for a value of an enumeration, or no value."""

    def __init__(self, words: Sequence[str], empty: str = "not set here", **options: Any) -> None:
        choices = [("", empty), *((str(word), str(word)) for word in words)]
        super().__init__(choices=choices, required=False, empty_value=None, **options)


def style_widget(field: forms.Field) -> None:
    """Set the CSS classes and attributes of a field's widget."""
    widget = field.widget
    kind = "form-check-input" if isinstance(widget, forms.CheckboxInput) else "form-control"
    if isinstance(widget, forms.Select):
        kind = "form-select"
    widget.attrs.update({"class": kind, "autocomplete": "off", "spellcheck": "false"})


class FieldRow(NamedTuple):
    """Form field as a page shows it, with its name in the configuration of the original system (`amps`)."""

    field: forms.BoundField
    amps: str


class FieldGroup(NamedTuple):
    """Fields under one heading."""

    title: str
    fields: list[FieldRow]
