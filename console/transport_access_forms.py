"""Forms of a draft's limits, transports, users and entitlements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms

from broker_core.access.secrets import MAX_SECRET, hash_password, hash_token, make_token
from broker_core.config.access import AUTHENTICATIONS
from broker_core.config.transports import TRANSPORT_KINDS
from console.forms import InstancePolicyForm, TransportPolicyForm
from console.part_forms import LinesField, PartForm, dress

_PROOFS = (("keep", "leave it as it is"), ("new", "a new one"), ("none", "take it away"))
TLS = ("certificate", "key", "client_ca")


class DraftLimitsForm(InstancePolicyForm):
    """The instance's limits and what it journals, in a draft."""

    reason = None
    expected_revision = None
    expected_version = forms.IntegerField(widget=forms.HiddenInput)


class DraftTransportForm(TransportPolicyForm):
    """A transport in a draft: also its name and kind, and who may log on."""

    GROUPS = (
        ("Transport", ("name", "kind")),
        ("Access", ("authentication", "restricted", "certificate", "key", "client_ca")),
        *TransportPolicyForm.GROUPS,
    )
    reason = None
    expected_revision = None
    expected_version = forms.IntegerField(widget=forms.HiddenInput)
    name = forms.CharField(label="Name", max_length=64)
    kind = forms.ChoiceField(label="Kind", choices=[(kind, kind) for kind in TRANSPORT_KINDS])
    authentication = forms.ChoiceField(
        label="Clients prove who they are by", choices=[(word, word) for word in AUTHENTICATIONS], required=False,
        help_text="certificate needs TLS with authorities of clients’ certificates.")
    restricted = forms.BooleanField(
        label="Restricted", required=False, help_text="Clients may do only what an entitlement allows.")
    certificate = forms.CharField(
        label="TLS certificate", required=False, max_length=1_024, help_text="An absolute path to a PEM file, as the next two.")
    key = forms.CharField(label="TLS key", required=False, max_length=1_024)
    client_ca = forms.CharField(label="Authorities of clients’ certificates", required=False, max_length=1_024)

    def __init__(self, *args: Any, new: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("kind", "authentication"):
            dress(self.fields[name])
        if not new:  # clients and history speak of a transport by its name
            self.fields["name"].disabled = self.fields["kind"].disabled = True

    def changes(self) -> dict[str, Any]:
        """What is laid over the draft's transport."""
        clean = self.cleaned_data
        tls = {name: clean[name] for name in TLS if clean[name]}
        listener = {name: clean[name] for name in ("enabled", "host", "port")}
        limits = {key: value for key, value in super().changes().items() if key in ("pool", "client_policy")}
        return {"kind": clean["kind"], **listener, **limits, "authentication": clean["authentication"] or "none",
                "restricted": clean["restricted"], "tls": {**dict.fromkeys(TLS), **tls} if tls else None}


class UserForm(PartForm):
    """Somebody who may log on. A secret is typed once; its hash is what is kept."""

    GROUPS = (
        ("User", ("name", "groups", "clients")),
        ("Password", ("password_change", "password")),
        ("Token", ("token_change",)),
        ("Certificate", ("certificate",)),
    )

    name = forms.CharField(label="Name", max_length=64)
    groups = LinesField(label="Groups", required=False, help_text="One a line; entitlements speak of them as group:name.")
    clients = LinesField(
        label="Client names they may take", required=False, help_text="One a line; feed-* for those that begin so. None: any.")
    password_change = forms.ChoiceField(label="Password", choices=_PROOFS, initial="keep")
    password = forms.CharField(
        label="New password", required=False, max_length=MAX_SECRET, strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}))
    token_change = forms.ChoiceField(
        label="Token", choices=_PROOFS, initial="keep", help_text="A new one is made here and shown once.")
    certificate = forms.CharField(
        label="Name in the certificate", required=False, max_length=255,
        help_text="The common name or a subject alternative name of the client’s TLS certificate.")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["password"].widget.attrs["autocomplete"] = "new-password"

    def clean(self) -> dict[str, Any]:
        """A new password is asked for where one is to be set."""
        clean: dict[str, Any] = super().clean() or {}
        if clean.get("password_change") == "new" and not clean.get("password"):
            self.add_error("password", "Type the new password.")
        return clean

    def made(self, before: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """The user's entry, and the token that was made for them, which is told once and kept nowhere."""
        clean, token = self.cleaned_data, make_token() if self.cleaned_data["token_change"] == "new" else ""
        entry = {
            "name": clean["name"], "password": before.get("password"), "token": before.get("token"),
            "certificate": clean["certificate"] or None, "groups": clean["groups"], "clients": clean["clients"],
        }  # fmt: skip
        if clean["password_change"] != "keep":
            entry["password"] = hash_password(clean["password"]) if clean["password_change"] == "new" else None
        if clean["token_change"] != "keep":
            entry["token"] = hash_token(token) if token else None
        return entry, token


class EntitlementForm(PartForm):
    """What some may do on restricted transports."""

    GROUPS = (("", ("who", "transports", "publish", "subscribe", "filter")),)

    who = LinesField(label="Who", help_text="One a line: user names, feed-*, group:name, or * for everybody.")
    transports = LinesField(label="On these transports", required=False, help_text="One a line. None: all.")
    publish = LinesField(label="May publish to", required=False, help_text="Topic patterns, one a line.")
    subscribe = LinesField(label="May subscribe to", required=False, help_text="Topic patterns, one a line.")
    filter = forms.CharField(
        label="Filter", required=False, max_length=4_096, help_text="Added to every subscription that this allows.")
