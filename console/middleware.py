"""Gives every request an id, which audit events and error answers carry, and sees to it that no attempt to change
something goes without an audit event."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from console.services import audit


class RequestIdMiddleware:
    """Sets `request.request_id` and answers it in the X-Request-Id header. Ids from outside aren't trusted."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.request_id = uuid.uuid4().hex
        response = self.get_response(request)
        response["X-Request-Id"] = request.request_id
        return response


class AuditMiddleware:
    """Writes the event of a write request whose service wrote none: because it was denied or failed before, or by neglect.

    Stands outside authentication and CSRF, so that what those refuse is seen too. Reading requests aren't events.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if request.method not in ("GET", "HEAD", "OPTIONS", "TRACE"):
            audit.record_request(request, response)
        return response
