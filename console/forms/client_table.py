"""The name of a view of the clients' table."""

from __future__ import annotations

from django import forms

from console.models import SavedClientView


class SavedViewForm(forms.Form):
    """One field: spaces around it aren't part of it."""

    name = forms.CharField(label="Name", max_length=SavedClientView._meta.get_field("name").max_length)
