"""What is asked before something is done to a client."""

from __future__ import annotations

from django import forms


class DisconnectForm(forms.Form):
    """Why a client is disconnected."""

    reason = forms.CharField(
        label="Reason",
        max_length=500,
        help_text="For example: misbehaving release 2.3, owner is told.",
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", "required": True}),
    )
