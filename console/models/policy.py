"""Lists of a policy: preset entries, custom rules, quotas, destinations, users and entitlements.

Each row is one entry of a policy document. The broker's own reader validates it, so that forms, the API and
imports apply the same checks. Services create a revision from the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

from broker_core.config.access import read_access
from broker_core.config.destinations import read_destinations
from broker_core.config.document_reader import DocumentReader
from broker_core.config.presets import read_activemq, read_qpid, read_quotas, read_xap
from broker_core.config.rules import read_rules
from console.choices import PolicyEntryKind
from console.models.instance import Instance, check_name

_READERS: dict[str, Callable[[DocumentReader, Any], Any]] = {
    PolicyEntryKind.XAP: read_xap,
    PolicyEntryKind.ACTIVEMQ: read_activemq,
    PolicyEntryKind.QPID: read_qpid,
    PolicyEntryKind.RULE: read_rules,
    PolicyEntryKind.QUOTA: read_quotas,
    PolicyEntryKind.DESTINATION: read_destinations,
}
"""Readers that validate entries, by kind."""


def _raise(problems: list[str]) -> None:
    if problems:
        raise ValidationError(problems)


class PolicyEntry(models.Model):
    """Entry of a preset (XAP, ActiveMQ, Qpid), custom rule, quota or destination.

    `key` identifies its subject; see `entry_key`.
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="entries")
    kind = models.CharField(max_length=16, choices=PolicyEntryKind.choices)
    place = models.PositiveIntegerField(default=0)
    key = models.CharField(max_length=1_500, editable=False)
    settings = models.JSONField()

    class Meta:
        ordering = ["kind", "place", "pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["instance", "kind", "key"],
                name="policy_entry_once",
                violation_error_message="two entries have the same topic, transport or scope",
            ),
            models.CheckConstraint(
                condition=models.Q(kind__in=PolicyEntryKind.values), name="policy_entry_kind"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key}".strip()

    def clean(self) -> None:
        """Validate the entry with its reader, and set `key`.

        Layers of a rule are checked together when the document is created.
        """
        if not isinstance(self.settings, dict):
            raise ValidationError("Give an object.")
        self.key = entry_key(self.kind, self.settings)
        if self.kind != PolicyEntryKind.RULE:
            reader = DocumentReader()
            _READERS[self.kind](reader, [self.settings])
            _raise(reader.problems)


def entry_key(kind: str, entry: dict[str, Any]) -> str:
    """Return the key that must be unique among entries of a kind.

    A rule's name and scope, a destination's name, otherwise topic, user and transport.
    """
    if kind == PolicyEntryKind.DESTINATION:
        return str(entry.get("name") or "")
    if kind == PolicyEntryKind.RULE:
        scope = entry.get("scope") or {}
        words = [str(entry.get("name", "")), *(f"{key}={scope[key]}" for key in sorted(scope) if scope[key])]
    else:
        words = [
            str(entry.get("topic") or ""),
            f"user={entry['user']}" if entry.get("user") else "",
            f"transport={entry['transport']}" if entry.get("transport") else "",
        ]
    return " ".join(filter(None, words))


class BrokerUser(models.Model):
    """User who may log on to transports with authentication. Secrets are stored as hashes."""

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="users")
    name = models.CharField(max_length=64, validators=[check_name])
    password = models.CharField(max_length=500, null=True, blank=True)  # noqa: DJ001 (null is "none")
    token = models.CharField(max_length=500, null=True, blank=True)  # noqa: DJ001
    certificate = models.CharField(max_length=255, null=True, blank=True)  # noqa: DJ001
    groups = models.JSONField(default=list, blank=True)
    # names of clients that the user may take; empty means any
    clients = models.JSONField(default=list, blank=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["instance", "name"], name="broker_user_once"),
            models.UniqueConstraint(fields=["instance", "token"], name="broker_user_token_once"),
            models.UniqueConstraint(fields=["instance", "certificate"], name="broker_user_certificate_once"),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Validate the user with the broker's reader."""
        reader = DocumentReader()
        read_access(reader, {"users": [self.to_entry()]})
        _raise(reader.problems)

    def to_entry(self) -> dict[str, Any]:
        """Return the user's entry in a policy document."""
        return {
            "name": self.name,
            "password": self.password,
            "token": self.token,
            "certificate": self.certificate,
            "groups": self.groups,
            "clients": self.clients,
        }


class Entitlement(models.Model):
    """Rights of users and groups on restricted transports."""

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="entitlements")
    place = models.PositiveIntegerField(default=0)
    who = models.JSONField(default=list)
    transports = models.JSONField(default=list, blank=True)
    publish = models.JSONField(default=list, blank=True)
    subscribe = models.JSONField(default=list, blank=True)
    filter = models.CharField(max_length=4_096, null=True, blank=True)  # noqa: DJ001 (null is "none")

    class Meta:
        ordering = ["place", "pk"]

    def __str__(self) -> str:
        return ", ".join(map(str, self.who)) if isinstance(self.who, list) else ""

    def clean(self) -> None:
        """Validate the entitlement with the broker's reader."""
        reader = DocumentReader()
        read_access(reader, {"entitlements": [self.to_entry()]})
        _raise(reader.problems)

    def to_entry(self) -> dict[str, Any]:
        """Return the entitlement's entry in a policy document."""
        return {
            "who": self.who,
            "transports": self.transports,
            "publish": self.publish,
            "subscribe": self.subscribe,
            "filter": self.filter,
        }
