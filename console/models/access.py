"""Who may do what: grants, which give a role within a scope; and API tokens, shown once, stored as a hash, expiring."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q

from broker_core.errors import ClientError
from broker_core.subscriptions.topics import TopicPattern
from console.access.networks import parse_networks
from console.access.rights import is_name_pattern
from console.choices import TOKEN_PERMISSIONS, Role
from console.models.instance import Instance

MAX_NETWORKS = 20
"""That a token may be bound to."""


def check_client_pattern(value: str) -> None:
    """Refuse what can't be a pattern of client names."""
    if not is_name_pattern(value):
        raise ValidationError(
            "Use 1 to 64 letters, digits, dots, dashes and underscores; * stands for any of them."
        )


def check_topic_pattern(value: str) -> None:
    """Refuse what can't be a topic pattern."""
    try:
        TopicPattern.parse(value)
    except ClientError as problem:
        raise ValidationError(problem.sentence) from problem


def check_scope(value: Any) -> None:
    """Refuse anything but a list of what tokens may be made to do."""
    if not isinstance(value, list) or not value or not set(value) <= set(TOKEN_PERMISSIONS):
        raise ValidationError(f"Give some of {', '.join(TOKEN_PERMISSIONS)}.")


def check_networks(value: Any) -> None:
    """Refuse anything but a list of addresses and networks."""
    if not isinstance(value, list) or len(value) > MAX_NETWORKS:
        raise ValidationError(f"Give up to {MAX_NETWORKS} addresses or networks.")
    try:
        parse_networks(str(one) for one in value)
    except ValueError as problem:
        raise ValidationError(f"{problem}.") from problem


class Grant(models.Model):
    """A role for somebody. No instance means every one; empty patterns mean all clients and topics."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="grants")
    role = models.CharField(max_length=16, choices=Role.choices)
    instance = models.ForeignKey(
        Instance, on_delete=models.CASCADE, null=True, blank=True, related_name="grants"
    )
    client_pattern = models.CharField(max_length=64, blank=True, validators=[check_client_pattern])
    topic_pattern = models.CharField(max_length=255, blank=True, validators=[check_topic_pattern])
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["user__username", "role", "pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "role", "instance", "client_pattern", "topic_pattern"], name="grant_once"
            ),
            # SQL takes two NULLs for different ones, so grants of every instance need a constraint of their own.
            models.UniqueConstraint(
                fields=["user", "role", "client_pattern", "topic_pattern"],
                condition=Q(instance__isnull=True),
                name="grant_everywhere_once",
            ),
            models.CheckConstraint(
                condition=Q(role__in=[str(role) for role in Role]), name="grant_role_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.scope_text}"

    @property
    def scope_text(self) -> str:
        """ "on sluice-1, clients desk-*", for people and the audit."""
        words = [f"on {self.instance.name}" if self.instance else "everywhere"]
        words += [f"clients {self.client_pattern}"] if self.client_pattern else []
        words += [f"topics {self.topic_pattern}"] if self.topic_pattern else []
        return ", ".join(words)


class ApiToken(models.Model):
    """A key for programs. `prefix` finds the row, `digest` is SHA-256 of the secret part (256 random bits).

    A token may do what stands in `scope` and its account may do at that moment, never more.
    """

    name = models.CharField(max_length=100)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    prefix = models.CharField(max_length=16, unique=True)
    digest = models.CharField(max_length=64)
    scope = models.JSONField(default=list, validators=[check_scope])
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    used_at = models.DateTimeField(null=True, blank=True)
    networks = models.JSONField(
        default=list, blank=True, validators=[check_networks]
    )  # empty is from anywhere

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
