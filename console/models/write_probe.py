"""A row that tells whether the database can be written."""

from __future__ import annotations

from django.db import models


class WriteProbe(models.Model):
    """Small row that `/readyz` writes in place of the one before, to see that it can."""

    at = models.DateTimeField()
    filler = models.BinaryField()

    def __str__(self) -> str:
        return f"write probe of {self.at}"
