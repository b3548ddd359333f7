"""How somebody wants the clients' table: the columns they chose, and views that they gave a name."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class ClientColumns(models.Model):
    """The columns one person chose besides the usual ones: their keys, with commas between."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    keys = models.CharField(max_length=500, blank=True)

    class Meta:
        verbose_name_plural = "client columns"

    def __str__(self) -> str:
        return f"{self.user}: {self.keys}"


class SavedClientView(models.Model):
    """A filter, an order and columns under a name. `query` is that of its address, so that it can be passed on as one."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=40)
    query = models.CharField(max_length=1_000, blank=True)

    class Meta:
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["owner", "name"], name="client_view_name_once")]

    def __str__(self) -> str:
        return self.name
