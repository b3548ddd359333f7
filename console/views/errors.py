"""Error pages: unknown address, expired form, internal error, unavailable database."""

from __future__ import annotations

import sys

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from console.queries.system_conditions import unavailable_since


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Show the page for an unknown address."""
    return render(request, "404.html", {"path": request.path[:200]}, status=404)


def csrf_failed(request: HttpRequest) -> HttpResponse:
    """Show the page for a form without this session's token.

    Usually the form is in a tab that was open before the operator logged in again in another.
    """
    return render(None, "before.html", status=403)


def server_error(request: HttpRequest) -> HttpResponse:
    """Show the page for an exception, or for an unavailable database.

    Django calls this while the exception is being handled. These pages must not query the database.
    """
    if isinstance(sys.exc_info()[1], DatabaseError):
        return render(None, "503.html", {"since": unavailable_since("database")}, status=503)
    return render(None, "500.html", {"request_id": getattr(request, "request_id", "")}, status=500)
