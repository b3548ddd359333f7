"""Metrics at /metrics, for Prometheus on this machine, or with a token that has permission `view`."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from prometheus_client import CONTENT_TYPE_LATEST
from rest_framework.exceptions import NotAuthenticated
from rest_framework.request import Request

from api.auth import actor_of
from api.views.view import ApiView
from console.access.rights import PublicAccess
from console.choices import Permission
from console.queries import metrics
from console.services import access

LOOPBACK = ("127.0.0.1", "::1")


class MetricsView(ApiView):
    """Metrics in Prometheus' text format."""

    needs = {"GET": PublicAccess.EVERYONE}  # from loopback; for other addresses `get` requires VIEW

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        """Return all metrics, collected for this request."""
        if not _is_local(request):
            if not request.user.is_authenticated:
                raise NotAuthenticated("From another machine, send a token with the permission view.")
            access.require_permission(actor_of(request), Permission.VIEW)
        return HttpResponse(metrics.metrics_text(), content_type=CONTENT_TYPE_LATEST)


def _is_local(request: Request) -> bool:
    """Return whether the request comes from this machine without a proxy.

    Behind a proxy every request comes from loopback, so a token is always needed there.
    """
    forwarded = (
        settings.BEHIND_PROXY or "X-Forwarded-For" in request.headers or "Forwarded" in request.headers
    )
    return request.META.get("REMOTE_ADDR") in LOOPBACK and not forwarded
