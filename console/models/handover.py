"""Confirmation by an operator that the events on the overview were read."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class ShiftHandover(models.Model):
    """Moment up to which an operator has confirmed the events."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    seen_until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.user} until {self.seen_until:%Y-%m-%d %H:%M}"
