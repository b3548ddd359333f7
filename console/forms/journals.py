"""Form of journal actions."""

from __future__ import annotations

from django import forms

from broker_core.errors import OperatorError
from console.choices import JOURNAL_ACTIONS
from console.units.ages import parse_age


class JournalActionForm(forms.Form):
    """Form of a journal action and the age of the segments."""

    action = forms.ChoiceField(choices=[(str(kind), kind.label) for kind in JOURNAL_ACTIONS])
    age = forms.CharField(
        label="Segments whose newest record is older than",
        max_length=32,
        initial="7d",
        help_text="An interval with its unit: 30m, 12h, 7d, 4w. 0s selects every sealed segment.",
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", "spellcheck": "false"}),
    )

    in_lake = forms.BooleanField(
        label="Remove only segments that the lake has",
        required=False,
        help_text="Sluice compares the lake's files by counts and checksums before it removes a segment.",
    )

    member = forms.CharField(max_length=64, required=False, widget=forms.HiddenInput)

    def clean_age(self) -> str:
        """Return the age as text that services can parse. Raises ValidationError."""
        text = str(self.cleaned_data["age"]).strip()
        try:
            parse_age(text)
        except OperatorError as problem:
            raise forms.ValidationError(f"{problem.sentence} {problem.fix}") from problem
        return text
