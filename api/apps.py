"""The Django app of the REST API and the live feed; it has no models of its own."""

from __future__ import annotations

from django.apps import AppConfig


class ApiConfig(AppConfig):
    """REST views and Channels consumers."""

    name = "api"
    label = "api"

    def ready(self) -> None:
        """Register the OpenAPI extensions of `api.schema` with drf-spectacular."""
        from api import schema  # noqa: F401
