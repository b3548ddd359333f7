"""Runs: executions of an action or of a single request, with plan, progress, log and result."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q

from console.choices import ACTIVE_RUN_STATES, RunKind, RunState
from console.models.action import Action
from console.models.instance import Instance


class ActionRun(models.Model):
    """Execution of an action or of a single request.

    (action, due_at, member) is unique, so that two schedulers never run one firing twice.

    `parameters` of an action's run: its name, its steps at the time of the request, and the variables of
    its trigger. `steps`: the outcome of each step; a repetition of a lost run starts after the completed
    ones. `causes`: accounts and clients that caused the run, through events, publishes, schedules and
    repetitions. None of them may approve it (services/actions/causes.py).
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="runs")
    member = models.CharField(
        max_length=64, blank=True, default=""
    )  # member of a group whose journal, and whose machine's worker, the run uses
    kind = models.CharField(max_length=16, choices=RunKind.choices)
    parameters = models.JSONField(default=dict)
    trigger = models.JSONField(default=dict, blank=True)
    state = models.CharField(max_length=16, choices=RunState.choices, default=RunState.WAITING)
    progress = models.FloatField(default=0)  # percent
    step = models.CharField(max_length=300, blank=True)
    plan = models.JSONField(null=True, blank=True)
    plan_hash = models.CharField(max_length=64, blank=True)
    steps = models.JSONField(default=list, blank=True)
    result = models.JSONField(null=True, blank=True)
    error = models.JSONField(null=True, blank=True)
    log = models.TextField(blank=True)
    actor = models.CharField(max_length=200)
    actor_kind = models.CharField(max_length=16)
    actor_user_id = models.BigIntegerField(null=True, blank=True)  # no foreign key: a run outlives accounts
    causes = models.JSONField(default=list, blank=True)
    approver = models.CharField(max_length=200, blank=True)
    idempotency_key = models.CharField(max_length=200, blank=True)
    idempotency_digest = models.CharField(max_length=64, blank=True)
    action = models.ForeignKey(Action, on_delete=models.SET_NULL, null=True, blank=True, related_name="runs")
    due_at = models.DateTimeField(null=True, blank=True)
    repeats = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="repetitions"
    )
    origin = models.UUIDField(null=True, blank=True)  # first run, for a repetition
    cancel_requested = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    heard_at = models.DateTimeField(null=True, blank=True)  # last heartbeat of its worker

    class Meta:
        ordering = ["-created_at"]
        indexes = [
            models.Index(fields=["instance", "-created_at"], name="run_newest"),
            models.Index(fields=["state", "created_at"], name="run_by_state"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["action", "due_at", "member"], name="run_once_per_firing"),
            models.UniqueConstraint(
                fields=["instance", "member", "kind"],
                condition=Q(state__in=[str(state) for state in ACTIVE_RUN_STATES])
                & ~Q(kind=RunKind.ACTION.value),
                name="run_one_of_a_kind",
            ),
            models.UniqueConstraint(
                fields=["actor", "idempotency_key"], condition=~Q(idempotency_key=""), name="run_once_per_key"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}: {self.state}"

    @property
    def first_id(self) -> uuid.UUID:
        """Identity of the run that this one repeats, directly or indirectly; its own if it repeats none."""
        return self.origin or self.id
