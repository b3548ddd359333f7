"""Form to name a view of the clients' table."""

from __future__ import annotations

from django import forms

from console.models import SavedClientView


class SavedViewForm(forms.Form):
    """Form with the name of a view. Surrounding spaces are stripped."""

    name = forms.CharField(label="Name", max_length=SavedClientView._meta.get_field("name").max_length)
