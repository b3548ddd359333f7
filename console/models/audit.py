"""Audit log: account, action, object and result of each change. Append-only.

The ORM refuses to change or delete events (ImmutableModel). Database triggers
(console/models/append_only.py) refuse every UPDATE, and every DELETE of an event before its `expires_at`,
which is set at the INSERT and cannot be changed.
"""

from __future__ import annotations

from django.db import models

from console.choices import ActorKind, AuditResult
from console.models.immutable import ImmutableModel


class AuditEvent(ImmutableModel):
    """Attempt to change something: done, denied or failed.

    The actor is stored as text, so that the event outlives the account.
    """

    at = models.DateTimeField(auto_now_add=True)
    actor_kind = models.CharField(max_length=16, choices=ActorKind.choices)
    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=100)
    object = models.CharField(max_length=300, blank=True)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    reason = models.CharField(max_length=500, blank=True)
    result = models.CharField(max_length=16, choices=AuditResult.choices, default=AuditResult.DONE)
    message = models.CharField(max_length=1000, blank=True)
    source = models.CharField(max_length=64, blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)  # null means it is stored forever

    class Meta:
        verbose_name = "audit event"
        ordering = ["-at", "-id"]
        indexes = [
            models.Index(fields=["-at"], name="audit_newest"),
            models.Index(fields=["object", "-at"], name="audit_of_object"),
            models.Index(fields=["action", "-at"], name="audit_of_action"),
            models.Index(fields=["request_id"], name="audit_of_request"),
            models.Index(fields=["expires_at"], name="audit_expiry"),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.object}: {self.result}"


class AuditChainLink(models.Model):
    """Position of an event in the hash chain.

    `content` is the hash of the event, `former` the previous link's digest, and `digest` the hash of both.
    A link outlives its event. The event's expiry is part of its content, so that a check detects an event
    deleted too early.
    """

    number = models.BigIntegerField(primary_key=True)
    event_id = models.BigIntegerField(unique=True)
    content = models.CharField(max_length=64)
    former = models.CharField(max_length=64, blank=True)
    digest = models.CharField(max_length=64)
    expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["number"]

    def __str__(self) -> str:
        return f"{self.number}: {self.digest[:12]}"


class AuditChainHead(models.Model):
    """Newest link of the chain, in a single row.

    A writer locks the row until its event is stored, so that the chain never branches.
    """

    only = models.PositiveSmallIntegerField(primary_key=True, default=1)
    number = models.BigIntegerField(default=0)
    digest = models.CharField(max_length=64, blank=True)

    def __str__(self) -> str:
        return f"{self.number}: {self.digest[:12]}"
