"""Forms of a transport: address, access, and limits that differ from the instance's."""

from __future__ import annotations

from typing import Any

from django import forms

from broker_core.config.access import AUTHENTICATIONS
from broker_core.config.transports import (
    MAX_BODY,
    MIN_BODY,
    RESTRICTED_FIELDS,
    TRANSPORT_DEFAULTS,
    TRANSPORT_KINDS,
)
from console.choices import ResumeFrom
from console.forms.fields import FieldGroup, LinesField, style_widget
from console.forms.limits import LimitsForm

TLS = ("certificate", "key", "client_ca")
"""Settings of TLS."""


class TransportLimitsForm(LimitsForm):
    """Form of a transport's address and limits."""

    GROUPS = (("Listener", ("enabled", "host", "port")), *LimitsForm.GROUPS)

    enabled = forms.BooleanField(
        label="Enabled", required=False, help_text="A disabled transport accepts no new connections."
    )
    host = forms.CharField(label="Address", max_length=255)
    port = forms.IntegerField(
        label="Port", min_value=0, max_value=65_535, help_text="0 selects any free port."
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in (*LimitsForm.GROUPS[0][1], *LimitsForm.GROUPS[1][1]):
            self.fields[name].widget.attrs["placeholder"] = "Default of the instance"

    def changes(self) -> dict[str, Any]:
        """Return the changes for services: also the listener's settings."""
        return {**super().changes(), **{name: self.cleaned_data[name] for name in self.GROUPS[0][1]}}


class DraftTransportForm(TransportLimitsForm):
    """Form of a transport in a draft: also name, kind and access."""

    GROUPS = (
        ("Transport", ("name", "kind")),
        ("Access", ("authentication", "restricted", "certificate", "key", "client_ca", "origins")),
        ("STOMP", ("resume", "max_body")),
        *TransportLimitsForm.GROUPS,
    )
    expected_version = forms.IntegerField(widget=forms.HiddenInput)
    name = forms.CharField(label="Name", max_length=64)
    kind = forms.ChoiceField(label="Kind", choices=[(kind, kind) for kind in TRANSPORT_KINDS])
    authentication = forms.ChoiceField(
        label="Clients authenticate with",
        choices=[(word, word) for word in AUTHENTICATIONS],
        required=False,
        help_text="certificate requires TLS, and the authorities of client certificates.",
    )
    restricted = forms.BooleanField(
        label="Restricted", required=False, help_text="Clients can do only what an entitlement allows."
    )
    certificate = forms.CharField(
        label="TLS certificate",
        required=False,
        max_length=1_024,
        help_text="Absolute path of a PEM file. The next two settings are also PEM files.",
    )
    key = forms.CharField(label="TLS key", required=False, max_length=1_024)
    client_ca = forms.CharField(label="Authorities of client certificates", required=False, max_length=1_024)

    origins = LinesField(
        label="Origins of pages",
        required=False,
        help_text="Origins of pages that may connect by WebSocket, one per line, such as "
        "https://desk.example; * means any. Default: its own. Programs send no origin.",
    )

    resume = forms.ChoiceField(
        label="A client disconnected by a policy continues",
        choices=ResumeFrom.choices,
        required=False,
        help_text="Applies if the client subscribes as before within a minute.",
    )
    max_body = forms.IntegerField(
        label="Largest body (bytes)",
        required=False,
        min_value=MIN_BODY,
        max_value=MAX_BODY,
        help_text=f"Maximum size of a STOMP message. Default: {MAX_BODY:,}.",
    )

    def __init__(self, *args: Any, new: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("kind", "authentication", "resume"):
            style_widget(self.fields[name])
        for (
            name,
            kinds,
            # on the page of a new transport, a script hides the fields of other kinds
        ) in RESTRICTED_FIELDS.items():
            self.fields[name].widget.attrs["data-kinds"] = " ".join(sorted(kinds))
        if not new:  # clients and history refer to a transport by its name
            self.fields["name"].disabled = self.fields["kind"].disabled = True
            for name, kinds in RESTRICTED_FIELDS.items():
                if self.initial.get("kind") not in kinds and not self._says(name):
                    del self.fields[name]

    def _says(self, name: str) -> bool:
        """Return whether the transport sets a value that differs from the default."""
        return bool(self.initial.get(name, TRANSPORT_DEFAULTS[name]) != TRANSPORT_DEFAULTS[name])

    def groups(self) -> list[FieldGroup]:
        """Return the fields by heading, without headings that this kind of transport lacks."""
        return [group for group in super().groups() if group.fields]

    def changes(self) -> dict[str, Any]:
        """Return the settings to apply to the draft's transport."""
        clean = self.cleaned_data
        tls = {name: clean[name] for name in TLS if clean[name]}
        listener = {name: clean[name] for name in ("enabled", "host", "port")}
        limits = {key: value for key, value in super().changes().items() if key in ("pool", "client_policy")}
        return {
            "kind": clean["kind"],
            **listener,
            **limits,
            "authentication": clean["authentication"] or "none",
            "restricted": clean["restricted"],
            "tls": {**dict.fromkeys(TLS), **tls} if tls else None,
            **{name: clean[name] or TRANSPORT_DEFAULTS[name] for name in RESTRICTED_FIELDS if name in clean},
        }
