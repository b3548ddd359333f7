"""Every address of the web process."""

from __future__ import annotations

from django.urls import include, path

from api.views.health import healthz, readyz

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("api/v1/", include(("api.urls", "api"), namespace="v1")),
]

try:
    import console.views.urls
except ModuleNotFoundError as missing:
    # An installation may leave the pages out and run the API alone; a broken import inside them must not hide here.
    if missing.name not in ("console.views", "console.views.urls"):
        raise
else:
    urlpatterns.append(path("", include("console.views.urls")))
