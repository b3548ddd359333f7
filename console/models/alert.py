"""Alert rules, alerts, and the messages that report them."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import models

from console.choices import AlertSubject, MessageState
from console.models.instance import Instance

MAX_ADDRESSES = 10
"""Maximum e-mail addresses of a rule."""


class AlertRule(models.Model):
    """Rule for alerts and their recipients.

    An empty client pattern means every client. Pages always show open alerts, regardless of recipients.
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=80)
    about = models.CharField(max_length=16, choices=AlertSubject.choices, default=AlertSubject.STALLED)
    client = models.CharField(
        "client names", max_length=64, blank=True, help_text="A pattern, such as desk-*. Empty: all."
    )
    for_s = models.PositiveIntegerField("for so many seconds", default=30)
    webhook = models.CharField(max_length=500, blank=True, help_text="URL of a host in SLUICE_WEBHOOK_HOSTS.")
    emails = models.CharField(
        "e-mail to", max_length=500, blank=True, help_text="Addresses, separated by commas."
    )
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name", "pk"]
        constraints = [models.UniqueConstraint(fields=["instance", "name"], name="alert_rule_name")]

    def __str__(self) -> str:
        return self.name

    @property
    def host(self) -> str:
        """Host of the webhook, for display. The rest of its address may be a secret."""
        return urlsplit(self.webhook).netloc if self.webhook else ""

    @property
    def addresses(self) -> list[str]:
        """Recipients of e-mail."""
        return [one.strip() for one in self.emails.split(",") if one.strip()]

    def clean(self) -> None:
        """Check the e-mail addresses. Raises ValidationError."""
        if len(self.addresses) > MAX_ADDRESSES:
            raise ValidationError({"emails": f"At most {MAX_ADDRESSES} addresses."})
        for address in self.addresses:
            try:
                validate_email(address)
            except ValidationError as wrong:
                raise ValidationError({"emails": f"{address} isn't an e-mail address."}) from wrong


class Alert(models.Model):
    """Alert of a rule, from the first client that meets its condition until none does.

    It is open once a client has met the condition for `for_s` seconds. `members`: these clients and the
    moments since which they meet it, in seconds since 1970. After the end it contains the last ones.
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
    """Webhook call or e-mail about an alert, until it is sent or abandoned."""

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
        return f"{self.channel} {self.recipient}: {self.state}"

    @property
    def recipient(self) -> str:
        """Address of an e-mail, or host of a webhook, for display.

        The rest of a webhook's address may be a secret.
        """
        return urlsplit(self.target).netloc if self.channel == "webhook" else self.target
