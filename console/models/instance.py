"""Configuration that operators edit: an instance, its transports, and their pool and client policies.

A policy row without a transport applies to the instance. Brokers do not read these rows: services create an
immutable PolicyRevision from them, which a broker loads.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from broker_core.config import InstanceSettings
from broker_core.config.access import read_authentication, read_origins
from broker_core.config.document_reader import DocumentReader
from broker_core.config.instance import (
    DOWNGRADE_AFTER_MS,
    MAX_DOWNGRADE_MS,
    MIN_DOWNGRADE_MS,
    read_journaled_topics,
)
from broker_core.config.preset_settings import AMPS
from broker_core.config.transports import read_stomp
from broker_core.errors import OperatorError
from broker_core.names import is_name
from broker_core.subscriptions.journaled_topics import JournaledTopics
from console.choices import Authentication, ResumeFrom, TransportKind


def check_name(value: str) -> None:
    """Raise ValidationError unless a broker accepts the name."""
    if not is_name(value):
        raise ValidationError("Use 1 to 64 letters, digits, dots, dashes or underscores.")


def check_patterns(value: Any) -> None:
    """Raise ValidationError unless a value is a list of topic patterns."""
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ValidationError("Enter a list of topic patterns.")
    _check_topics(InstanceSettings("any", (), tuple(value)))


def check_journaled_topics(value: Any) -> None:
    """Raise ValidationError unless a broker accepts the entries: their form, patterns and filters."""
    reader = DocumentReader()
    topics = read_journaled_topics(reader, {"topics": value}, "topics", "journaled")
    if reader.problems:
        raise ValidationError(reader.problems)
    _check_topics(InstanceSettings("any", topics, ()))


def _check_topics(settings: InstanceSettings) -> None:
    try:
        JournaledTopics(settings)
    except OperatorError as problem:
        raise ValidationError(f"{problem.sentence} {problem.fix}") from problem


def check_directory(value: str) -> None:
    """Raise ValidationError unless a path is absolute."""
    if not value.startswith("/") or "\0" in value:
        raise ValidationError("Enter an absolute path.")


def default_journaled_topics() -> list[str]:
    """Return the default of journaled topics: all."""
    return [">"]


def default_unjournaled_topics() -> list[str]:
    """Return the default of topics that are never journaled."""
    return ["scratch.>"]


class Instance(models.Model):
    """Instance: settings of its journal and identity of its log.

    Its newest PolicyRevision is the policy that should be in force.
    """

    name = models.CharField(max_length=64, unique=True, validators=[check_name])
    journaled_topics = models.JSONField(
        default=default_journaled_topics, validators=[check_journaled_topics], blank=True
    )
    unjournaled_topics = models.JSONField(
        default=default_unjournaled_topics, validators=[check_patterns], blank=True
    )
    journal_size = models.BigIntegerField(
        default=128 * 1024 * 1024, validators=[MinValueValidator(1024 * 1024)]
    )
    preallocated_files = models.PositiveIntegerField(
        default=2, validators=[MinValueValidator(1), MaxValueValidator(64)]
    )
    journal_directory = models.CharField(  # noqa: DJ001 (null is "default")
        max_length=1024, null=True, blank=True, validators=[check_directory]
    )
    archive_directory = models.CharField(  # noqa: DJ001
        max_length=1024, null=True, blank=True, validators=[check_directory]
    )
    sync_members = models.JSONField(default=list, blank=True)
    sync_topics = models.JSONField(default=list, validators=[check_patterns], blank=True)
    downgrade_after_ms = models.PositiveIntegerField(
        default=DOWNGRADE_AFTER_MS,
        validators=[MinValueValidator(MIN_DOWNGRADE_MS), MaxValueValidator(MAX_DOWNGRADE_MS)],
    )
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)  # last start of its broker; in a group the first
    log = models.UUIDField(null=True, blank=True)  # identity of the log that its broker last reported
    frontier = models.BigIntegerField(default=0)  # durable frontier of that log

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class GroupMember(models.Model):
    """Member of a group, with the identity and durable frontier of its copy of the log."""

    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="members")
    name = models.CharField(max_length=64, validators=[check_name])
    log = models.UUIDField()
    frontier = models.BigIntegerField(default=0)

    class Meta:
        ordering = ["instance", "name"]
        constraints = [models.UniqueConstraint(fields=["instance", "name"], name="member_name_once")]

    def __str__(self) -> str:
        return f"{self.instance.name}/{self.name}"


class Transport(models.Model):
    """Listener of an instance."""

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="transports")
    name = models.CharField(max_length=64, validators=[check_name])
    kind = models.CharField(max_length=16, choices=TransportKind.choices)
    host = models.CharField(max_length=255, default="127.0.0.1")
    port = models.PositiveIntegerField(validators=[MaxValueValidator(65_535)])
    enabled = models.BooleanField(default=True)
    authentication = models.CharField(
        max_length=16, choices=Authentication.choices, default=Authentication.NONE
    )
    restricted = models.BooleanField(default=False)  # only actions that an entitlement allows
    tls = models.JSONField(null=True, blank=True)  # paths: certificate, key, client_ca
    origins = models.JSONField(default=list, blank=True)  # origins of pages that may connect by WebSocket
    resume = models.CharField(max_length=16, choices=ResumeFrom.choices, default=ResumeFrom.NOW)
    max_body = models.PositiveIntegerField(null=True, blank=True)  # bytes of a STOMP message's body

    class Meta:
        ordering = ["instance", "name"]
        constraints = [
            models.UniqueConstraint(fields=["instance", "name"], name="transport_name_once"),
            models.UniqueConstraint(
                fields=["instance", "host", "port"], condition=Q(port__gt=0), name="transport_address_once"
            ),
            models.CheckConstraint(condition=Q(port__lte=65_535), name="transport_port_range"),
            models.CheckConstraint(
                condition=Q(authentication__in=Authentication.values), name="transport_authentication"
            ),
            models.CheckConstraint(condition=Q(resume__in=ResumeFrom.values), name="transport_resume"),
        ]

    def __str__(self) -> str:
        return f"{self.instance.name}/{self.name}"

    def clean(self) -> None:
        """Check authentication, origins and STOMP settings with the broker's own reader."""
        reader = DocumentReader()
        read_authentication(
            reader,
            {"authentication": self.authentication, "restricted": self.restricted, "tls": self.tls},
            f"transport {self.name!r}",
        )
        read_origins(reader, {"origins": self.origins}, f"transport {self.name!r}")
        stomp = {"kind": self.kind, "resume": self.resume, "max_body": self.max_body}
        read_stomp(reader, stomp, f"transport {self.name!r}")
        if reader.problems:
            raise ValidationError(reader.problems)


def _least(setting: str) -> MinValueValidator:
    return MinValueValidator(AMPS[setting].low)


class PoolPolicy(models.Model):
    """Limits of a pool in bytes, for an instance or one transport.

    Null means the default or, for a transport, the instance's value.
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="pool_policies")
    transport = models.OneToOneField(
        Transport, on_delete=models.PROTECT, null=True, blank=True, related_name="pool_policy"
    )
    message_memory_limit = models.BigIntegerField(
        null=True, blank=True, validators=[_least("message_memory_limit")]
    )
    message_disk_limit = models.BigIntegerField(
        null=True, blank=True, validators=[_least("message_disk_limit")]
    )
    message_disk_path = models.CharField(  # noqa: DJ001 (null is "default")
        max_length=1024, null=True, blank=True
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["instance"], condition=Q(transport__isnull=True), name="instance_pool_policy_once"
            ),
            models.CheckConstraint(
                condition=Q(message_memory_limit__isnull=True) | Q(message_memory_limit__gt=0),
                name="memory_limit_positive",
            ),
            models.CheckConstraint(
                condition=Q(message_disk_limit__isnull=True) | Q(message_disk_limit__gt=0),
                name="disk_limit_positive",
            ),
        ]

    def __str__(self) -> str:
        return f"pool policy of {self.transport or self.instance}"


class ClientPolicy(models.Model):
    """Limits of one client, for an instance or one transport.

    Null means the default or, for a transport, the instance's value.
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="client_policies")
    transport = models.OneToOneField(
        Transport, on_delete=models.PROTECT, null=True, blank=True, related_name="client_policy"
    )
    client_max_capacity = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[_least("client_max_capacity"), MaxValueValidator(AMPS["client_max_capacity"].high)],
    )
    client_message_age_limit_ms = models.BigIntegerField(
        null=True, blank=True, validators=[_least("client_message_age_limit_ms")]
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["instance"], condition=Q(transport__isnull=True), name="instance_client_policy_once"
            ),
            models.CheckConstraint(
                condition=Q(client_max_capacity__isnull=True) | Q(client_max_capacity__range=(1, 100)),
                name="capacity_percent",
            ),
        ]

    def __str__(self) -> str:
        return f"client policy of {self.transport or self.instance}"
