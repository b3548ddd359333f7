"""Who did what, to what, and how it ended: append-only.

The ORM refuses to change or delete events (ImmutableModel), and the database does too: triggers (console/models/append_only.py) refuse
every UPDATE, and every DELETE of an event before its `expires_at`, which is set when it is written and can't be moved.
"""

from __future__ import annotations

from django.db import models

from console.choices import ActorKind, AuditResult
from console.models.immutable import ImmutableModel


class AuditEvent(ImmutableModel):
    """One attempt to change something, done, denied or failed. The actor is text, so that it outlives its account."""

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
    expires_at = models.DateTimeField(null=True, blank=True)  # null is kept for ever

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
    """One event's place in the chain: `digest` is over `former`, the link before's, and `content`, the event's own.

    It outlives its event, whose expiry is part of the content: what went before its time is seen as missing.
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
    """The newest link: one row, which whoever writes an event holds until it is stored, so that the chain is one."""

    only = models.PositiveSmallIntegerField(primary_key=True, default=1)
    number = models.BigIntegerField(default=0)
    digest = models.CharField(max_length=64, blank=True)

    def __str__(self) -> str:
        return f"{self.number}: {self.digest[:12]}"
