"""What happened: decisions the broker took, and samples of each client, transport and pool."""

from __future__ import annotations

from django.db import models

from console.choices import ScopeKind
from console.models.instance import Instance


class Decision(models.Model):
    """One explained act on a client. `details` is the broker's whole decision, as it was sent to the client."""

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="decisions")
    member = models.CharField(max_length=64, blank=True, default="")  # of a group; "" is a broker by itself
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
    """How far one client was behind at one moment, or at worst within a span that begins then."""

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
    """A client every ten seconds (`at` is a multiple of them), for a day."""

    rate_out_messages = models.FloatField(null=True)
    """Messages handed over in the second before; None of samples from before it was kept."""

    class Meta:
        ordering = ["at"]
        constraints = [
            models.UniqueConstraint(fields=["instance", "client", "at"], name="client_sample_once")
        ]
        indexes = [models.Index(fields=["at"], name="sample_age")]


class ClientMinute(ClientSampleBase):
    """The worst of a client's samples within one minute, for two weeks; the pipeline keeps longer ones. The rate is their mean."""

    rate_out_messages = models.FloatField(null=True)

    class Meta:
        ordering = ["at"]
        constraints = [
            models.UniqueConstraint(fields=["instance", "client", "at"], name="client_minute_once")
        ]
        indexes = [models.Index(fields=["at"], name="minute_age")]


class ClientHour(ClientSampleBase):
    """A client's hour on one transport, from the lake, for three months: the numbers of a point are the hour's worst, `state` is
    offlined when it was that, or draining, for any time of it and else live, and of the rest sums."""

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
    """A file of the lake whose rows the database has, and the file's stamp then: it is read again when that changed."""

    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=200)
    stamp = models.CharField(max_length=60)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["instance", "name"], name="lake_file_once")]

    def __str__(self) -> str:
        return self.name


class ResourceSample(models.Model):
    """What an instance, a transport or a pool did at one moment: rates a second, and what its clients used.

    `seconds` is 10 for samples, kept a day, 60 for their means and peaks, kept two weeks, and 3600 for those of hours, kept three
    months. How long records took from accepted to handed over is an instance's, of the ten seconds before, of minutes and hours the
    worst of them; None: nothing was handed over, or it is of before that was kept.
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="+")
    member = models.CharField(
        max_length=64, blank=True, default=""
    )  # each has its own rows; all together are their sum
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
