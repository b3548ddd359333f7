"""Policy revisions, which are immutable, and brokers' reports about the revision that they run."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from console.choices import RolloutState
from console.models.immutable import ImmutableModel
from console.models.instance import Instance


class PolicyRevision(ImmutableModel):
    """Numbered policy document of an instance, with author and reason.

    The revision with the highest number should be in force.
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="revisions")
    number = models.PositiveIntegerField()
    document = models.JSONField()
    author = models.CharField(max_length=200)
    author_user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.DO_NOTHING,
        null=True,
        blank=True,
        db_constraint=False,
        related_name="+",
    )
    reason = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = "policy revision"
        ordering = ["instance", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["instance", "number"], name="revision_number_once"),
            models.CheckConstraint(condition=models.Q(number__gte=1), name="revision_number_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.instance.name} revision {self.number}"

    @property
    def withdrawn(self) -> str:
        """Reason for the automatic withdrawal of its staged rollout; "" if there was none."""
        rollout = getattr(self, "rollout", None)
        return rollout.why if rollout is not None and rollout.state == RolloutState.RETURNED else ""


class RevisionReport(models.Model):
    """Report of one broker process about the revision that it runs.

    Each revision that a process applied has a row, with the moments of the first and last report.
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="reports")
    # member of a group; "" for a broker without a group
    member = models.CharField(max_length=64, blank=True, default="")
    number = models.PositiveIntegerField()
    # whether the broker keeps a policy that this database lacks
    set_back = models.BooleanField(default=False)
    pid = models.BigIntegerField(default=0)
    reported_at = models.DateTimeField()
    seen_at = models.DateTimeField()

    class Meta:
        ordering = ["-seen_at", "-id"]
        indexes = [
            models.Index(fields=["instance", "-seen_at"], name="report_newest"),
            models.Index(fields=["instance", "member", "-seen_at"], name="report_of_member"),
        ]

    def __str__(self) -> str:
        return f"{self.instance.name} runs revision {self.number}"
