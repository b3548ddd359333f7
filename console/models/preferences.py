"""Preferences of an account for the console's appearance, the same in every browser."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from console.choices import Clock, Density, Theme


class UserPreferences(models.Model):
    """Preferences of one account. An account without a row has the defaults."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    theme = models.CharField(max_length=8, choices=Theme.choices, default=Theme.AUTO)
    clock = models.CharField(max_length=8, choices=Clock.choices, default=Clock.BROWSER)
    density = models.CharField(max_length=12, choices=Density.choices, default=Density.COMPACT)
    range = models.CharField(max_length=8, default="3h")
    saved_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "preferences"

    def __str__(self) -> str:
        return f"{self.user}: {self.theme}, {self.clock}, {self.density}, {self.range}"
