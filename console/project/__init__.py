"""Composition root: settings, URLs, ASGI and Celery. It may import every package; no package imports it."""

from __future__ import annotations

from console.project.celery import app as celery_app

__all__ = ["celery_app"]
