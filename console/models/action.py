"""Actions (when, if, do), and the locks of their runs."""

from __future__ import annotations

from django.db import models

from console.choices import MissedRunPolicy
from console.models.instance import Instance


class Action(models.Model):
    """Automation: triggers, conditions and steps.

    `when` and `steps` are checked by console/services/actions/definition.py, through which every change
    goes. `started_at`: moment at which the action was created, changed or enabled. Intervals count from it,
    and missed firings before it are not made up for.
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
    )  # no foreign key: an action outlives accounts

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
    """Lock of a running run on its instance, such as "archive" or "action:7".

    At most one run at a time has each lock.
    """

    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="+")
    member = models.CharField(max_length=64, blank=True, default="")
    kind = models.CharField(max_length=80)
    run = models.ForeignKey("console.ActionRun", on_delete=models.CASCADE, related_name="holds")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["instance", "member", "kind"], name="run_hold_once")]

    def __str__(self) -> str:
        return f"{self.kind} of {self.instance_id}"
