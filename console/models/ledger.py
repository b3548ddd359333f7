"""The loss ledger: intervals of messages that subscriptions did not get."""

from __future__ import annotations

from django.db import models

from broker_core.delivery.account import DiscardCause
from console.models.instance import Instance


class LossRecord(models.Model):
    """Interval of messages that a subscription did not get.

    `first` and `last` are bookmarks of its first and last record; "" when no record of it is journaled.
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="+")
    # member of a group; "" for a broker without a group
    member = models.CharField(max_length=64, blank=True, default="")
    at = models.DateTimeField()
    client = models.CharField(max_length=64)
    subscription = models.CharField(max_length=128)
    topic = models.CharField(max_length=1024, blank=True)
    cause = models.CharField(max_length=32)
    rule = models.CharField(max_length=100, blank=True)
    messages = models.BigIntegerField()
    bytes = models.BigIntegerField(default=0)
    unjournaled = models.BigIntegerField(default=0)
    first = models.CharField(max_length=128, blank=True)
    last = models.CharField(max_length=128, blank=True)
    # whether each record from `first` to `last` is one of the messages; else both are outer bounds
    exact = models.BooleanField(default=False)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            models.Index(fields=["instance", "-at"], name="loss_newest"),
            models.Index(fields=["instance", "client", "-at"], name="loss_of_client"),
            models.Index(fields=["instance", "rule", "-at"], name="loss_of_rule"),
        ]

    def __str__(self) -> str:
        return f"{self.client}/{self.subscription}: {self.messages} {self.cause}"

    @property
    def is_loss(self) -> bool:
        """Whether the messages are lost to the subscriber. An unknown cause counts as a loss.

        Otherwise the log keeps them, another consumer gets them, or the subscriber asked for the discard.
        """
        return self.cause not in set(DiscardCause) or DiscardCause(self.cause).is_loss
