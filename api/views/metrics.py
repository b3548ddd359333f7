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
from console.services.actors import access_of_request

LOOPBACK = ("127.0.0.1", "::1")


class MetricsView(ApiView):
    """Metrics in Prometheus' text format."""

    needs = {"GET": PublicAccess.EVERYONE}  # from loopback; for other addresses `get` requires VIEW

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        """Return all metrics, collected for this request.

        Series of single clients are limited to those that the caller may view. A caller from this machine
        without a token may view none.
        """
        if not _is_local(request):
            if not request.user.is_authenticated:
                raise NotAuthenticated("From another machine, send a token with the permission view.")
            access.require_permission(actor_of(request), Permission.VIEW)
        text = metrics.metrics_text(access_of_request(request))
        return HttpResponse(text, content_type=CONTENT_TYPE_LATEST)


def _is_local(request: Request) -> bool:
    """Return whether the request comes from this machine without a proxy.

    Behind a proxy every request comes from loopback, so a token is always needed there.
    """
    forwarded = (
        settings.BEHIND_PROXY or "X-Forwarded-For" in request.headers or "Forwarded" in request.headers
    )
    return request.META.get("REMOTE_ADDR") in LOOPBACK and not forwarded
