"""Row that the readiness check writes."""

from __future__ import annotations

from django.db import models


class WriteProbe(models.Model):
    """Small row that `/readyz` replaces to check that the database can be written."""

    at = models.DateTimeField()
    filler = models.BinaryField()

    def __str__(self) -> str:
        return f"write probe of {self.at}"
