"""History: decisions of brokers, and samples of clients, transports and pools."""

from __future__ import annotations

from django.db import models

from console.choices import ScopeKind
from console.models.instance import Instance


class Decision(models.Model):
    """Decision: one explained action on a client.

    `details` is the broker's complete decision, as sent to the client.
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="decisions")
    # member of a group; "" for a broker without a group
    member = models.CharField(max_length=64, blank=True, default="")
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
            models.Index(fields=["instance", "rule", "-at"], name="decision_of_rule"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.client}: {self.reason}"


class ClientSampleBase(models.Model):
    """Lag of one client at a moment, or the worst lag within a span that begins at it."""

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
        abstract = True

    def __str__(self) -> str:
        return f"{self.client} at {self.at:%H:%M:%S}: {self.lag_messages} behind"


class ClientSample(ClientSampleBase):
    """Sample of a client every 10 seconds (`at` is a multiple), stored for a day."""

    rate_out_messages = models.FloatField(null=True)
    """Messages handed over in the second before; None in samples older than this field."""

    class Meta:
        ordering = ["at"]
        constraints = [
            models.UniqueConstraint(fields=["instance", "client", "at"], name="client_sample_once")
        ]
        indexes = [models.Index(fields=["at"], name="sample_age")]


class ClientMinute(ClientSampleBase):
    """Worst values of a client's samples within one minute, stored for two weeks.

    The rate is the samples' mean. The pipeline stores longer history.
    """

    rate_out_messages = models.FloatField(null=True)

    class Meta:
        ordering = ["at"]
        constraints = [
            models.UniqueConstraint(fields=["instance", "client", "at"], name="client_minute_once")
        ]
        indexes = [models.Index(fields=["at"], name="minute_age")]


class ClientHour(ClientSampleBase):
    """Hour of a client on one transport, from the lake, stored for three months.

    The fields of a sample have the hour's worst values, and the other fields are sums. `state` is
    "offlined" if the client was offlined or draining at any time, else "live".
    """

    transport = models.CharField(max_length=64, blank=True)
    connected_ms = models.BigIntegerField(default=0)
    lag_messages_mean = models.FloatField(default=0)
    delivered_messages = models.BigIntegerField(default=0)
    delivered_bytes = models.BigIntegerField(default=0)
    rate_max = models.FloatField(default=0)
    offline_episodes = models.PositiveIntegerField(default=0)
    offline_ms = models.BigIntegerField(default=0)
    acts = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["at"]
        constraints = [
            models.UniqueConstraint(fields=["instance", "client", "at", "transport"], name="client_hour_once")
        ]
        indexes = [
            models.Index(fields=["at"], name="hour_age"),
            models.Index(fields=["instance", "at"], name="hour_of_instance"),
        ]


class ImportedLakeFile(models.Model):
    """Lake file whose rows the database has. It is imported again when its `stamp` changes."""

    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=200)
    stamp = models.CharField(max_length=60)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["instance", "name"], name="lake_file_once")]

    def __str__(self) -> str:
        return self.name


class ResourceSample(models.Model):
    """Sample of an instance, transport or pool: rates per second, and resources that its clients used.

    `seconds` is the span: 10 for samples (stored for a day), 60 for their means and peaks (two weeks), 3600
    for those of hours (three months). Only an instance has latencies, from accepted to handed over, of the
    10 seconds before; minutes and hours have the worst. None: no message was handed over, or the row is
    older than the field.
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="+")
    member = models.CharField(
        max_length=64, blank=True, default=""
    )  # each member has its own rows; their sum is that of the group
    kind = models.CharField(max_length=16, choices=ScopeKind.choices)
    name = models.CharField(max_length=64)
    seconds = models.PositiveSmallIntegerField(default=10)
    at = models.DateTimeField()
    clients = models.PositiveIntegerField(default=0)
    offlined = models.PositiveIntegerField(default=0)
    messages_in = models.FloatField(default=0)
    messages_out = models.FloatField(default=0)
    bytes_in = models.FloatField(default=0)
    bytes_out = models.FloatField(default=0)
    lag_messages = models.BigIntegerField(default=0)
    memory_used = models.BigIntegerField(default=0)
    memory_limit = models.BigIntegerField(default=0)
    disk_used = models.BigIntegerField(default=0)
    disk_limit = models.BigIntegerField(default=0)
    delay_p50_ms = models.FloatField(null=True)
    delay_p99_ms = models.FloatField(null=True)

    class Meta:
        ordering = ["at"]
        constraints = [
            models.UniqueConstraint(
                fields=["instance", "member", "kind", "name", "seconds", "at"], name="place_sample_once"
            ),
            models.CheckConstraint(condition=models.Q(seconds__in=[10, 60, 3600]), name="place_sample_span"),
        ]
        indexes = [models.Index(fields=["seconds", "at"], name="place_sample_age")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name} at {self.at:%H:%M:%S}"
