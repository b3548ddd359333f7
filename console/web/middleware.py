"""Gives every request an id, which audit events and error answers carry; sees to it that no attempt to change something
goes without an audit event; notes that sessions are used."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest, HttpResponse

from console import current_instance
from console.services import audit, sessions


class RequestIdMiddleware:
    """Sets `request.request_id` and answers it in the X-Request-Id header. Ids from outside aren't trusted."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request_id = uuid.uuid4().hex
        request.request_id = request_id  # type: ignore[attr-defined]  # `actors.actor_of` reads it
        response = self.get_response(request)
        response["X-Request-Id"] = request_id
        return response


class InstanceMiddleware:
    """Has the request answered for the instance that was chosen in its session."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with current_instance.use_instance_of(request.session):
            return self.get_response(request)


class SessionUseMiddleware:
    """Notes that somebody did something in their session; console/web/session_store.py ends it when nobody does."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response, match = self.get_response(request), request.resolver_match
        url_name = match.url_name or "" if match is not None else ""
        # A session that nobody looked at wasn't needed, and isn't read for this: monitors ask for /healthz.
        by_a_person = sessions.is_user_activity(str(request.method), request.path, url_name)
        if by_a_person and request.session.accessed and SESSION_KEY in request.session:
            sessions.record_use(request.session, time.time())
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
