"""Grants, which give a role within a scope, and API tokens."""

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
"""Maximum addresses and networks that a token may be restricted to."""


def check_client_pattern(value: str) -> None:
    """Raise ValidationError unless a value is a pattern of client names."""
    if not is_name_pattern(value):
        raise ValidationError(
            "Use 1 to 64 letters, digits, dots, dashes and underscores; * matches any of them."
        )


def check_topic_pattern(value: str) -> None:
    """Raise ValidationError unless a value is a topic pattern."""
    try:
        TopicPattern.parse(value)
    except ClientError as problem:
        raise ValidationError(problem.sentence) from problem


def check_scope(value: Any) -> None:
    """Raise ValidationError unless a value is a list of permissions that a token may have."""
    if not isinstance(value, list) or not value or not set(value) <= set(TOKEN_PERMISSIONS):
        raise ValidationError(f"Select permissions from {', '.join(TOKEN_PERMISSIONS)}.")


def check_networks(value: Any) -> None:
    """Raise ValidationError unless a value is a list of at most `MAX_NETWORKS` addresses and networks."""
    if not isinstance(value, list) or len(value) > MAX_NETWORKS:
        raise ValidationError(f"Enter at most {MAX_NETWORKS} addresses or networks.")
    try:
        parse_networks(str(one) for one in value)
    except ValueError as problem:
        raise ValidationError(f"{problem}.") from problem


class Grant(models.Model):
    """Role of an account within a scope.

    No instance means every instance; empty patterns mean all clients and topics.
    """

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
            # SQL treats two NULLs as different, so grants for every instance need their own constraint.
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
        """Scope as text for pages and the audit log, such as "on sluice-1, clients desk-*"."""
        words = [f"on {self.instance.name}" if self.instance else "everywhere"]
        words += [f"clients {self.client_pattern}"] if self.client_pattern else []
        words += [f"topics {self.topic_pattern}"] if self.topic_pattern else []
        return ", ".join(words)


class ApiToken(models.Model):
    """API token: a key for programs, shown once and stored as a hash.

    `prefix` finds the row. `digest` is the SHA-256 of the secret part (256 random bits). A token may use a
    permission only if its `scope` contains it and its account has it at that moment.
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
    )  # empty means from anywhere

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
