"""Form of a new alert rule."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings

from broker_core.errors import OperatorError
from console.access.rights import is_name_pattern
from console.forms.fields import style_widget
from console.models import AlertRule, Instance
from console.services.actions.webhook_address import check_address
from console.services.alerts import MAX_RULES

MAX_DURATION_S = 86_400
"""Maximum seconds for which a condition must hold before an alert."""


class AlertForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """Form of an alert rule: condition, duration and recipients."""

    class Meta:
        model = AlertRule
        fields = ["name", "about", "client", "for_s", "webhook", "emails"]

    def __init__(self, *args: Any, instance_of: Instance | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"auto_id": "alert_%s"})
        if instance_of is not None:
            self.instance.instance = instance_of
        self.fields["name"].help_text = "Part of each message."
        self.fields["about"].label = "When"
        self.fields["for_s"].label = "Duration before the alert, in seconds"
        for field in self.fields.values():
            style_widget(field)

    def clean_client(self) -> str:
        """Return the pattern of client names; "" means all. Raises ValidationError."""
        text = str(self.cleaned_data["client"]).strip()
        if text and not is_name_pattern(text):
            raise forms.ValidationError("Enter a pattern of client names, such as desk-*.")
        return text

    def clean_for_s(self) -> int:
        """Return the seconds, at most a day. Raises ValidationError."""
        seconds = int(self.cleaned_data["for_s"])
        if seconds > MAX_DURATION_S:
            raise forms.ValidationError("At most one day: 86400.")
        return seconds

    def clean_webhook(self) -> str:
        """Return the webhook's address, whose host must be declared. Raises ValidationError."""
        text = str(self.cleaned_data["webhook"]).strip()
        if text:
            try:
                check_address(text)
            except OperatorError as problem:
                raise forms.ValidationError(f"{problem.sentence} {problem.fix}") from problem
        return text

    def clean_emails(self) -> str:
        """Return the e-mail addresses. Raises ValidationError without a mail server."""
        text = str(self.cleaned_data["emails"]).strip()
        if text and not settings.SLUICE_SMTP_URL:
            raise forms.ValidationError("No mail server is configured. Set SLUICE_SMTP_URL first.")
        return text

    def clean(self) -> dict[str, Any]:
        """Check that the name is unique and the number of rules is within `MAX_RULES`."""
        clean: dict[str, Any] = super().clean() or {}
        rows = AlertRule.objects.filter(instance_id=self.instance.instance_id)
        if rows.filter(name=clean.get("name")).exists():
            self.add_error("name", "An alert with this name exists already.")
        if rows.count() >= MAX_RULES:
            self.add_error(None, f"The limit of {MAX_RULES} alerts is reached. Delete some.")
        return clean
