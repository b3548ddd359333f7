"""URLs of the web process, and two that fail, to test the error pages."""

from __future__ import annotations

from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.urls import path

from console.access.rights import PublicAccess
from console.project import urls
from console.project.urls import handler400, handler403, handler404, handler500
from console.views.common import requires_permission

__all__ = ["handler400", "handler403", "handler404", "handler500", "urlpatterns"]


@requires_permission(PublicAccess.EVERYONE)
def fails(request: HttpRequest) -> HttpResponse:
    """Raise an error, like a bug in a view."""
    raise RuntimeError("asked to fail")


@requires_permission(PublicAccess.EVERYONE)
def database_fails(request: HttpRequest) -> HttpResponse:
    """Raise the error of an unreachable database."""
    raise OperationalError("asked to fail")


urlpatterns = [path("fails/", fails), path("fails/database/", database_fails), *urls.urlpatterns]
