"""What a browser gets where there is no page: an address that isn't there, a mistake of ours, a database that is away."""

from __future__ import annotations

import sys

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from console.queries.system_conditions import unavailable_since


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """No page has this address."""
    return render(request, "404.html", {"path": request.path[:200]}, status=404)


def csrf_failed(request: HttpRequest) -> HttpResponse:
    """A form without this session's token: mostly of a tab that was open before somebody logged in again in another."""
    return render(None, "before.html", status=403)


def server_error(request: HttpRequest) -> HttpResponse:
    """Django calls this while the exception is being handled. Nothing on these pages asks the database for anything."""
    if isinstance(sys.exc_info()[1], DatabaseError):
        return render(None, "503.html", {"since": unavailable_since("database")}, status=503)
    return render(None, "500.html", {"request_id": getattr(request, "request_id", "")}, status=500)
