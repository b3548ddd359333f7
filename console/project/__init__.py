"""The composition root: settings, urls, ASGI and Celery. It may import everything; nobody imports it."""

from __future__ import annotations

from console.project.celery import app as celery_app

__all__ = ["celery_app"]
