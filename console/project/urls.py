"""URLs of the web process."""

from __future__ import annotations

from django.urls import include, path

from api.views.health import healthz, readyz
from api.views.metrics import MetricsView

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("metrics", MetricsView.as_view(), name="metrics"),
    path("api/v1/", include(("api.urls", "api"), namespace="v1")),
    path("", include("console.views.urls")),
]
handler400 = "api.error_handlers.bad_request"
handler403 = "api.error_handlers.forbidden"
handler404 = "api.error_handlers.not_found"
handler500 = "api.error_handlers.server_error"
