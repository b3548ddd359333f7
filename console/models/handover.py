"""When somebody last looked at the overview and said so."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class ShiftHandover(models.Model):
    """The moment up to which somebody has seen what happened."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    seen_until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.user} until {self.seen_until:%Y-%m-%d %H:%M}"
