"""Forms of the page on which administrators manage accounts."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth import get_user_model

from console.choices import TOKEN_PERMISSIONS, Role
from console.models import Instance


def _text(**attrs: str) -> forms.TextInput:
    return forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", **attrs})


class OwnPasswordMixin(forms.Form):
    """Field for the administrator's own password. An account without a password leaves it empty."""

    own_password = forms.CharField(
        label="Your own password",
        max_length=1024,
        required=False,
        strip=False,
        widget=forms.PasswordInput(attrs={"class": "form-control", "autocomplete": "current-password"}),
    )


class PersonForm(forms.Form):
    """Form of a new account."""

    username = forms.CharField(label="Name", max_length=150, widget=_text())


class GrantForm(OwnPasswordMixin):
    """Form to grant a role. Empty fields mean no restriction."""

    person = forms.CharField(label="Person", max_length=150, widget=_text(list="people"))
    role = forms.ChoiceField(
        label="Role", choices=Role.choices, widget=forms.Select(attrs={"class": "form-select"})
    )
    instance = forms.ChoiceField(
        label="Instance", required=False, widget=forms.Select(attrs={"class": "form-select"})
    )
    client_pattern = forms.CharField(
        label="Clients",
        max_length=64,
        required=False,
        widget=_text(placeholder="all"),
        help_text="A pattern of client names, like desk-*.",
    )
    topic_pattern = forms.CharField(
        label="Topics",
        max_length=255,
        required=False,
        widget=_text(placeholder="all"),
        help_text="A topic pattern, such as flights.>",
    )

    field_order = ("person", "role", "instance", "client_pattern", "topic_pattern", "own_password")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = Instance.objects.values_list("name", flat=True)
        instance = self.fields["instance"]
        assert isinstance(instance, forms.ChoiceField)
        instance.choices = [("", "every one"), *((name, name) for name in names)]

    def clean_person(self) -> str:
        """Return the account's name. Raises ValidationError for an unknown name."""
        name = str(self.cleaned_data["person"])
        if not get_user_model().objects.filter(username=name).exists():
            raise forms.ValidationError("No account has that name.")
        return name


class TokenForm(OwnPasswordMixin):
    """Form to create an API token for one's own account."""

    field_order = ("name", "lifetime", "networks", "scope", "own_password")

    name = forms.CharField(label="Purpose", max_length=100, widget=_text(placeholder="nightly export"))
    lifetime = forms.CharField(
        label="Ends after", max_length=40, initial="90d", widget=_text(), help_text="At most 366d."
    )
    networks = forms.CharField(
        label="Only from",
        max_length=1_000,
        required=False,
        widget=_text(placeholder="anywhere"),
        help_text="Addresses or networks such as 10.1.0.0/16, separated by spaces.",
    )
    scope = forms.MultipleChoiceField(
        label="May",
        choices=[(str(one), one.label) for one in TOKEN_PERMISSIONS],
        initial=["view"],
        widget=forms.CheckboxSelectMultiple,
    )
