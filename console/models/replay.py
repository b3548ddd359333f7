"""Managed replays: definition, author, and the broker's last report.

The broker has the current state, which changes many times a second. A row is shown while the broker is
unavailable, and after the broker has removed the replay.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from console.models.instance import Instance

REPLAY_STATES = ("waiting", "running", "following", "paused", "completed", "cancelled")
"""States of a managed replay."""


class ManagedReplay(models.Model):
    """Managed replay of an instance, identified by its name and the moment of its creation."""

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="replays")
    # member of a group; "" for a broker without a group
    member = models.CharField(max_length=64, blank=True, default="")
    name = models.CharField(max_length=64)
    client = models.CharField(max_length=64)
    topic = models.CharField(max_length=1024)
    state = models.CharField(max_length=16, choices=[(one, one) for one in REPLAY_STATES])
    progress = models.FloatField(default=0)  # 0 to 1
    shown = models.JSONField(default=dict)  # the broker's complete entry at `reported_at`
    author = models.CharField(max_length=200, blank=True)  # account that created it; empty if its client did
    created_at = models.DateTimeField()
    reported_at = models.DateTimeField()

    class Meta:
        ordering = ["-created_at", "name"]
        constraints = [
            models.UniqueConstraint(fields=["instance", "name", "created_at"], name="managed_replay_once"),
            models.CheckConstraint(
                condition=Q(progress__gte=0) & Q(progress__lte=1), name="managed_replay_progress"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.client}: {self.state}"
