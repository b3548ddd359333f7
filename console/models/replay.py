"""Managed replays: what was asked for, who asked, and what the broker last said of each.

The broker has the truth: where a replay stands moves many times a second. A row is what operators see of it while the
broker is away, and what became of it after the broker has forgotten it.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from console.models.instance import Instance

REPLAY_STATES = ("waiting", "running", "following", "paused", "completed", "cancelled")


class ManagedReplay(models.Model):
    """One managed replay of an instance, by its name and the moment it was made."""

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="replays")
    member = models.CharField(max_length=64, blank=True, default="")  # of a group; "" is a broker by itself
    name = models.CharField(max_length=64)
    client = models.CharField(max_length=64)
    topic = models.CharField(max_length=1024)
    state = models.CharField(max_length=16, choices=[(one, one) for one in REPLAY_STATES])
    progress = models.FloatField(default=0)  # 0 to 1
    shown = models.JSONField(default=dict)  # the broker's whole description, as of `reported_at`
    author = models.CharField(max_length=200, blank=True)  # who made it here; empty: its client did
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
