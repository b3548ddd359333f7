"""Form of an operator's preferences."""

from __future__ import annotations

from typing import Any

from django import forms

from console.choices import Clock, Density, Theme
from console.forms.fields import style_widget
from console.queries.overview import RANGES


class PreferencesForm(forms.Form):
    """Form of theme, time zone, density, and default range of plots."""

    theme = forms.ChoiceField(label="Theme", choices=Theme.choices)
    clock = forms.ChoiceField(label="Time zone", choices=Clock.choices)
    density = forms.ChoiceField(label="Rows", choices=Density.choices)
    range = forms.ChoiceField(
        label="Range of plots",
        choices=[(one.key, one.label) for one in RANGES.values()],
        help_text="Default range of the overview and of a client’s page.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"auto_id": "settings_%s"})
        for field in self.fields.values():
            style_widget(field)
