"""What happened to clients: decisions the broker took, and samples of each client every ten seconds."""

from __future__ import annotations

from django.db import models

from console.models.instance import Instance


class Decision(models.Model):
    """One explained act on a client. `details` is the broker's whole decision, as it was sent to the client."""

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="decisions")
    at = models.DateTimeField()
    client = models.CharField(max_length=64)
    transport = models.CharField(max_length=64, blank=True)
    pool = models.CharField(max_length=64, blank=True)
    action = models.CharField(max_length=32)
    reason = models.CharField(max_length=64)
    rule = models.CharField(max_length=100, blank=True)
    revision = models.PositiveIntegerField(default=0)
    mode = models.CharField(max_length=16, blank=True)
    signal = models.CharField(max_length=64, blank=True)
    observed = models.BigIntegerField(null=True, blank=True)
    limit = models.BigIntegerField(null=True, blank=True)
    unit = models.CharField(max_length=32, blank=True)
    sentence = models.TextField(blank=True)
    details = models.JSONField(default=dict)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            models.Index(fields=["instance", "-at"], name="decision_newest"),
            models.Index(fields=["instance", "client", "-at"], name="decision_of_client"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.client}: {self.reason}"


class ClientSample(models.Model):
    """How far one client was behind at one moment (`at` is a multiple of ten seconds)."""

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="+")
    client = models.CharField(max_length=64)
    at = models.DateTimeField()
    state = models.CharField(max_length=16)
    lag_messages = models.BigIntegerField(default=0)
    lag_bytes = models.BigIntegerField(default=0)
    lag_ms = models.BigIntegerField(default=0)
    outbox_bytes = models.BigIntegerField(default=0)
    spool_bytes = models.BigIntegerField(default=0)

    class Meta:
        ordering = ["at"]
        constraints = [models.UniqueConstraint(fields=["instance", "client", "at"], name="client_sample_once")]
        indexes = [models.Index(fields=["at"], name="sample_age")]

    def __str__(self) -> str:
        return f"{self.client} at {self.at:%H:%M:%S}: {self.lag_messages} behind"
