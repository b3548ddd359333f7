"""Changes that an operator has selected but not yet applied."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from console.choices import PendingChangeKind
from console.models.draft import PolicyDraft
from console.models.instance import Instance


class PendingChange(models.Model):
    """Pending change of an operator. `target` is its object, such as a client's name.

    `claimed_at` is the time at which a request began to apply it. The row is deleted when that ends, so an
    older claim means that the process was killed, and that the change may have been carried out.
    """

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="+")
    kind = models.CharField(max_length=16, choices=PendingChangeKind.choices)
    target = models.CharField(max_length=300, blank=True)
    parameters = models.JSONField(default=dict)
    draft = models.ForeignKey(PolicyDraft, on_delete=models.CASCADE, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    claimed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["created_at", "pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "instance", "kind", "target"],
                condition=models.Q(claimed_at__isnull=True),
                name="pending_change_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.target}".strip()
