"""Django app of the control plane."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class ConsoleConfig(AppConfig):
    """Control plane: models, services, pages, management commands."""

    name = "console"
    label = "console"
    verbose_name = "Sluice"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register system checks and login signals, and install the audit log's triggers after migrations."""
        from console import checks  # noqa: F401
        from console.models import append_only
        from console.web import login_audit  # noqa: F401

        post_migrate.connect(append_only.install_triggers, sender=self, dispatch_uid="append_only")
