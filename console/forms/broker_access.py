"""Forms of users who may log on to transports, and of entitlements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms

from broker_core.access.credential_hashes import MAX_SECRET_CHARACTERS, hash_password, hash_token, make_token
from console.forms.draft_part import DraftPartForm
from console.forms.fields import LinesField

_PROOFS = (("keep", "Don’t change it"), ("new", "Create a new one"), ("none", "Remove it"))
"""Choices for a stored secret."""


class BrokerUserForm(DraftPartForm):
    """Form of a broker user. Only the hash of a typed secret is stored."""

    GROUPS = (
        ("User", ("name", "groups", "clients")),
        ("Password", ("password_change", "password")),
        ("Token", ("token_change",)),
        ("Certificate", ("certificate",)),
    )

    name = forms.CharField(label="Name", max_length=64)
    # Django removes declared fields from the class
    groups = LinesField(  # type: ignore[assignment]  # Django takes declared fields out of the class
        label="Groups", required=False, help_text="One per line. Entitlements refer to them as group:name."
    )
    clients = LinesField(
        label="Allowed client names",
        required=False,
        help_text="One per line, such as feed-*. Empty: any name.",
    )
    password_change = forms.ChoiceField(label="Password", choices=_PROOFS, initial="keep")
    password = forms.CharField(
        label="New password",
        required=False,
        max_length=MAX_SECRET_CHARACTERS,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    token_change = forms.ChoiceField(
        label="Token",
        choices=_PROOFS,
        initial="keep",
        help_text="Sluice generates a new token and shows it once.",
    )
    certificate = forms.CharField(
        label="Name in the certificate",
        required=False,
        max_length=255,
        help_text="Common name or subject alternative name of the client’s TLS certificate.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["password"].widget.attrs["autocomplete"] = "new-password"

    def clean(self) -> dict[str, Any]:
        """Check that a new password was typed if one is to be set."""
        clean: dict[str, Any] = super().clean() or {}
        if clean.get("password_change") == "new" and not clean.get("password"):
            self.add_error("password", "Enter the new password.")
        return clean

    def entry_and_token(self, before: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the user's entry and a new token, or "".

        The page shows the token once; only its hash is stored. `before` is the stored entry.
        """
        clean, token = self.cleaned_data, make_token() if self.cleaned_data["token_change"] == "new" else ""
        entry = {
            "name": clean["name"],
            "password": before.get("password"),
            "token": before.get("token"),
            "certificate": clean["certificate"] or None,
            "groups": clean["groups"],
            "clients": clean["clients"],
        }
        if clean["password_change"] != "keep":
            entry["password"] = (
                hash_password(clean["password"]) if clean["password_change"] == "new" else None
            )
        if clean["token_change"] != "keep":
            entry["token"] = hash_token(token) if token else None
        return entry, token


class EntitlementForm(DraftPartForm):
    """Form of an entitlement: rights of users and groups on restricted transports."""

    GROUPS = (("", ("who", "transports", "publish", "subscribe", "filter")),)

    who = LinesField(
        label="Users and groups",
        help_text="One per line: user names, feed-*, group:name, or * for all users.",
    )
    transports = LinesField(
        label="On these transports", required=False, help_text="One per line. Empty: all."
    )
    publish = LinesField(label="May publish to", required=False, help_text="Topic patterns, one per line.")
    subscribe = LinesField(
        label="May subscribe to", required=False, help_text="Topic patterns, one per line."
    )
    filter = forms.CharField(
        label="Filter",
        required=False,
        max_length=4_096,
        help_text="Added to every subscription that this entitlement allows.",
    )
