"""Columns and saved views of the clients' table, per account."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class ClientColumns(models.Model):
    """Additional columns that an account chose: their keys, separated by commas."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    keys = models.CharField(max_length=500, blank=True)

    class Meta:
        verbose_name_plural = "client columns"

    def __str__(self) -> str:
        return f"{self.user}: {self.keys}"


class SavedClientView(models.Model):
    """Named view of the clients' table: filter, order and columns.

    `query` is the query string of its URL, so that a view can be shared as a link.
    """

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=40)
    query = models.CharField(max_length=1_000, blank=True)

    class Meta:
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["owner", "name"], name="client_view_name_once")]

    def __str__(self) -> str:
        return self.name
