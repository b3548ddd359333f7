"""Policy drafts, which are edited and previewed before they are published, and staged rollouts."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from console.choices import RolloutState
from console.models.access import check_client_pattern
from console.models.instance import Instance
from console.models.revision import PolicyRevision


class PolicyDraft(models.Model):
    """Policy document that is being edited.

    `base` is the revision it was created from; `version` is its ETag.
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="drafts")
    title = models.CharField(max_length=200)
    base = models.PositiveIntegerField()
    document = models.JSONField()
    author = models.CharField(max_length=200)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["-changed_at", "-pk"]
        constraints = [models.CheckConstraint(condition=Q(base__gte=1), name="draft_base_positive")]

    def __str__(self) -> str:
        return f"{self.title} (from revision {self.base})"


class StagedRollout(models.Model):
    """Revision that is in force for some clients first. At most one rollout runs per instance.

    client          pattern of client names; "" when `share` is used
    share           percentage of the clients, always the same ones, by a hash of their names
    most_decisions  decisions that the revision may carry out; the next one is held and ends the rollout
    allowances      part of `most_decisions` that each member of a group may carry out, by name
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="rollouts")
    revision = models.OneToOneField(PolicyRevision, on_delete=models.PROTECT, related_name="rollout")
    base = models.ForeignKey(PolicyRevision, on_delete=models.PROTECT, related_name="+")
    client = models.CharField(max_length=64, blank=True, validators=[check_client_pattern])
    share = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(99)]
    )
    most_decisions = models.PositiveIntegerField(default=0)
    allowances = models.JSONField(default=dict, blank=True)
    state = models.CharField(max_length=16, choices=RolloutState.choices, default=RolloutState.RUNNING)
    why = models.CharField(max_length=500, blank=True)
    started_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-started_at", "-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["instance"], condition=Q(state=RolloutState.RUNNING), name="one_rollout_at_a_time"
            ),
            models.CheckConstraint(
                condition=(Q(client="") & Q(share__isnull=False) & Q(share__range=(1, 99)))
                | (~Q(client="") & Q(share__isnull=True)),
                name="rollout_to_pattern_or_share",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.revision} first for {self.client or f'{self.share} % of the clients'}"

    @property
    def parts(self) -> list[tuple[str, int]]:
        """Members of a group with their parts of the allowance, by name; empty for a single broker."""
        return sorted((member, part) for member, part in self.allowances.items() if member)
