"""Every address of the web process."""

from __future__ import annotations

from django.urls import include, path

from api.views.health import healthz, readyz

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("api/v1/", include(("api.urls", "api"), namespace="v1")),
    path("", include("console.views.urls")),
]
