"""The Django app that holds the control plane's models, pages and commands."""

from __future__ import annotations

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    """The console: models, services, pages, management commands."""

    name = "console"
    label = "console"
    verbose_name = "Sluice"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks and what listens to logins."""
        from console import checks, signals  # noqa: F401
