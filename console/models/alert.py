"""Alerts: what somebody wants to be told of, what was told, and to whom it went."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import models

from console.choices import AlertSubject, MessageState
from console.models.instance import Instance

MAX_ADDRESSES = 10


class AlertRule(models.Model):
    """When to tell whom. An empty client pattern is every client; it always stands on the page too."""

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=80)
    about = models.CharField(max_length=16, choices=AlertSubject.choices, default=AlertSubject.STALLED)
    client = models.CharField("client names", max_length=64, blank=True, help_text="A pattern, like desk-*. Empty: all.")  # fmt: skip
    for_s = models.PositiveIntegerField("for so many seconds", default=30)
    webhook = models.CharField(max_length=500, blank=True, help_text="An address of a host in SLUICE_WEBHOOK_HOSTS.")  # fmt: skip
    emails = models.CharField("e-mail to", max_length=500, blank=True, help_text="Addresses with commas between.")  # fmt: skip
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name", "pk"]
        constraints = [models.UniqueConstraint(fields=["instance", "name"], name="alert_rule_name")]

    def __str__(self) -> str:
        return self.name

    @property
    def host(self) -> str:
        """Whose webhook it is. The rest of the address may be a secret."""
        return urlsplit(self.webhook).netloc if self.webhook else ""

    @property
    def addresses(self) -> list[str]:
        """Whom e-mail goes to."""
        return [one.strip() for one in self.emails.split(",") if one.strip()]

    def clean(self) -> None:
        """Addresses are such."""
        if len(self.addresses) > MAX_ADDRESSES:
            raise ValidationError({"emails": f"At most {MAX_ADDRESSES} addresses."})
        for address in self.addresses:
            try:
                validate_email(address)
            except ValidationError as wrong:
                raise ValidationError({"emails": f"{address} is no e-mail address."}) from wrong


class Alert(models.Model):
    """What a rule found, from the first that it fits until none does. It is open once one of them has fitted for long enough.

    `members` says who, and since when in seconds since 1970; once it is over, who was the last.
    """

    rule = models.ForeignKey(AlertRule, on_delete=models.CASCADE, related_name="alerts")
    members = models.JSONField(default=dict)
    sentence = models.CharField(max_length=1_000, blank=True)
    begun_at = models.DateTimeField()
    opened_at = models.DateTimeField(null=True)
    closed_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-begun_at", "-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["rule"], condition=models.Q(closed_at=None), name="alert_open_once"
            )
        ]
        indexes = [models.Index(fields=["rule", "-begun_at"], name="alert_newest")]

    def __str__(self) -> str:
        return f"{self.rule}: {self.sentence[:80]}"


class AlertMessage(models.Model):
    """A webhook's call or an e-mail that tells of an alert, until it was sent or given up."""

    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, related_name="messages")
    channel = models.CharField(max_length=8)
    target = models.CharField(max_length=500)
    over = models.BooleanField(default=False, help_text="Whether it tells of the end.")
    state = models.CharField(max_length=8, choices=MessageState.choices, default=MessageState.WAITING)
    attempts = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField()
    problem = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["due_at", "pk"]
        indexes = [models.Index(fields=["state", "due_at"], name="alert_message_due")]

    def __str__(self) -> str:
        return f"{self.channel} {self.whom}: {self.state}"

    @property
    def whom(self) -> str:
        """An e-mail's address, or a webhook's host: the rest of it may be a secret."""
        return urlsplit(self.target).netloc if self.channel == "webhook" else self.target
