"""Forms of one's own account: password, and the codes of an authenticator app."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.forms import PasswordChangeForm

from console.access.login_limit import hashing_slot


class OwnPasswordForm(PasswordChangeForm):
    """Django's, with its validators; hashing takes its turn as at a login."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["class"] = "form-control"
        self.fields[
            "new_password1"
        ].help_text = "Ten characters or more, no common password, not like your name."
        self.fields["new_password2"].help_text = ""

    def full_clean(self) -> None:
        """Raises OperatorError login_busy."""
        if not self.is_bound:
            return super().full_clean()
        with hashing_slot():
            return super().full_clean()


class TotpCodeForm(forms.Form):
    """A code of the app."""

    code = forms.CharField(
        label="Code of your authenticator app", max_length=12,
        widget=forms.TextInput(attrs={
            "class": "form-control", "inputmode": "numeric", "autocomplete": "one-time-code", "autofocus": True, "pattern": "[0-9 ]*",
        }),
    )  # fmt: skip


class FirstCodeForm(TotpCodeForm):
    """The first code of a new app, with the proof that this session gave the password."""

    proof = forms.CharField(required=False, max_length=1024, widget=forms.HiddenInput)


class ConfirmPasswordForm(forms.Form):
    """One's password, to show that it is still oneself."""

    password = forms.CharField(
        label="Your password", max_length=1024, strip=False,
        widget=forms.PasswordInput(attrs={"class": "form-control", "autocomplete": "current-password"}),
    )  # fmt: skip


class PasswordAndCodeForm(ConfirmPasswordForm):
    """One's password and the app's code, to switch the second factor off."""

    code = forms.CharField(
        label="Code of your authenticator app", max_length=12,
        widget=forms.TextInput(attrs={
            "class": "form-control", "inputmode": "numeric", "pattern": "[0-9 ]*",
            "autocomplete": "one-time-code",
        }),
    )  # fmt: skip
