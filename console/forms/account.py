"""Forms of an operator's own account: password, and codes of an authenticator app."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.forms import PasswordChangeForm

from console.access.login_limit import hashing_slot


class OwnPasswordForm(PasswordChangeForm):
    """Form to change one's own password, with Django's validators.

    Hashing waits for a slot, as at a login.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["class"] = "form-control"
        self.fields[
            "new_password1"
        ].help_text = "At least 10 characters. Don't use a common password or your name."
        self.fields["new_password2"].help_text = ""

    def full_clean(self) -> None:
        """Validate the form. Raises OperatorError `login_busy` if no hashing slot becomes free."""
        if not self.is_bound:
            return super().full_clean()
        with hashing_slot():
            return super().full_clean()


class TotpCodeForm(forms.Form):
    """Form for a code of the authenticator app."""

    code = forms.CharField(
        label="Code of your authenticator app",
        max_length=12,
        widget=forms.TextInput(
            attrs={
                "class": "form-control",
                "inputmode": "numeric",
                "autocomplete": "one-time-code",
                "autofocus": True,
                "pattern": "[0-9 ]*",
            }
        ),
    )


class FirstCodeForm(TotpCodeForm):
    """Form for the first code of a new app.

    `proof` shows that this session was given the password.
    """

    proof = forms.CharField(required=False, max_length=1024, widget=forms.HiddenInput)


class ConfirmPasswordForm(forms.Form):
    """Form for the operator's own password, as proof of identity."""

    password = forms.CharField(
        label="Your password",
        max_length=1024,
        strip=False,
        widget=forms.PasswordInput(attrs={"class": "form-control", "autocomplete": "current-password"}),
    )


class PasswordAndCodeForm(ConfirmPasswordForm):
    """Form for password and code, to disable the second factor."""

    code = forms.CharField(
        label="Code of your authenticator app",
        max_length=12,
        widget=forms.TextInput(
            attrs={
                "class": "form-control",
                "inputmode": "numeric",
                "pattern": "[0-9 ]*",
                "autocomplete": "one-time-code",
            }
        ),
    )
