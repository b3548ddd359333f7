"""Schedules, and runs: one execution of an action with its plan, progress, log and result."""

from __future__ import annotations

import uuid

from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models import Q

from console.choices import ACTIVE_RUN_STATES, RunKind, RunState
from console.models.instance import Instance


class Schedule(models.Model):
    """When an action is due: each week, or each day when `weekday` is null; UTC.

    A firing missed while nothing ran is made up for once, for the newest due time alone.
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="schedules")
    name = models.CharField(max_length=100)
    kind = models.CharField(max_length=16, choices=RunKind.choices)
    parameters = models.JSONField(default=dict, blank=True)
    weekday = models.PositiveSmallIntegerField(null=True, blank=True, validators=[MaxValueValidator(6)])
    hour = models.PositiveSmallIntegerField(default=0, validators=[MaxValueValidator(23)])
    minute = models.PositiveSmallIntegerField(default=30, validators=[MaxValueValidator(59)])
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["instance", "name"]
        constraints = [
            models.UniqueConstraint(fields=["instance", "name"], name="schedule_name_once"),
            models.CheckConstraint(
                condition=(Q(weekday__isnull=True) | Q(weekday__lte=6)) & Q(hour__lte=23) & Q(minute__lte=59),
                name="schedule_time_of_week",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.instance.name}: {self.name}"


class ActionRun(models.Model):
    """One execution. Unique (schedule, due_at): two beats never run one firing twice."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="runs")
    kind = models.CharField(max_length=16, choices=RunKind.choices)
    parameters = models.JSONField(default=dict)
    state = models.CharField(max_length=16, choices=RunState.choices, default=RunState.WAITING)
    progress = models.FloatField(default=0)  # percent
    step = models.CharField(max_length=300, blank=True)
    plan = models.JSONField(null=True, blank=True)
    result = models.JSONField(null=True, blank=True)
    error = models.JSONField(null=True, blank=True)
    log = models.TextField(blank=True)
    actor = models.CharField(max_length=200)
    actor_kind = models.CharField(max_length=16)
    schedule = models.ForeignKey(Schedule, on_delete=models.PROTECT, null=True, blank=True, related_name="runs")
    due_at = models.DateTimeField(null=True, blank=True)
    cancel_requested = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    heard_at = models.DateTimeField(null=True, blank=True)  # when its worker last said that it lives

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["instance", "-created_at"], name="run_newest")]
        constraints = [
            models.UniqueConstraint(fields=["schedule", "due_at"], name="run_once_per_firing"),
            models.UniqueConstraint(
                fields=["instance", "kind"],
                condition=Q(state__in=[str(state) for state in ACTIVE_RUN_STATES]),
                name="run_one_of_a_kind",
            ),
            models.CheckConstraint(
                condition=Q(schedule__isnull=True, due_at__isnull=True)
                | Q(schedule__isnull=False, due_at__isnull=False),
                name="run_due_with_schedule",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}: {self.state}"
