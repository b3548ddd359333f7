"""Actions (when, if, do), and what a run of one has for itself while it works."""

from __future__ import annotations

from django.db import models

from console.choices import MissedRunPolicy
from console.models.instance import Instance


class Action(models.Model):
    """An automation. `when` and `steps` are checked by console/services/actions/definition.py, the one way in.

    `started_at`: from when its intervals count and firings are made up for: when it was made, changed or enabled.
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="actions")
    name = models.CharField(max_length=100)
    description = models.CharField(max_length=500, blank=True)
    when = models.JSONField(default=list, blank=True)
    steps = models.JSONField(default=list)
    enabled = models.BooleanField(default=True)
    missed = models.CharField(
        max_length=16, choices=MissedRunPolicy.choices, default=MissedRunPolicy.RUN_ONCE
    )
    needs_approval = models.BooleanField(default=False)
    version = models.PositiveIntegerField(default=1)
    started_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    changed_by = models.CharField(max_length=200, blank=True)
    changed_by_user_id = models.BigIntegerField(
        null=True, blank=True
    )  # not a key: an action outlives accounts

    class Meta:
        ordering = ["instance", "name"]
        constraints = [
            models.UniqueConstraint(fields=["instance", "name"], name="action_name_once"),
            models.CheckConstraint(
                condition=models.Q(missed__in=MissedRunPolicy.values), name="action_missed_policy"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.instance.name}: {self.name}"


class RunLock(models.Model):
    """What a running run has for itself on its instance, e.g. "archive" or "action:7": one at a time of each."""

    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="+")
    member = models.CharField(max_length=64, blank=True, default="")
    kind = models.CharField(max_length=80)
    run = models.ForeignKey("console.ActionRun", on_delete=models.CASCADE, related_name="holds")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["instance", "member", "kind"], name="run_hold_once")]

    def __str__(self) -> str:
        return f"{self.kind} of {self.instance_id}"
