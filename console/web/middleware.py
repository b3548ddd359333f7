"""Middleware for request ids, the session's instance, last use of sessions, and audit events of write
requests.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest, HttpResponse

from console import current_instance
from console.services import audit, sessions


class RequestIdMiddleware:
    """Middleware that sets `request.request_id` and returns it as X-Request-Id.

    Ids in the request are ignored, because they can't be trusted.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request_id = uuid.uuid4().hex
        request.request_id = request_id  # type: ignore[attr-defined]  # `actors.actor_of` reads it
        response = self.get_response(request)
        response["X-Request-Id"] = request_id
        return response


class InstanceMiddleware:
    """Middleware that handles the request for the instance selected in its session."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with current_instance.use_instance_of(request.session):
            return self.get_response(request)


class SessionUseMiddleware:
    """Middleware that records a user's activity in the session.

    console/web/session_store.py ends sessions without activity.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response, match = self.get_response(request), request.resolver_match
        url_name = match.url_name or "" if match is not None else ""
        # A session that the view did not read is not read here either: monitors request /healthz often.
        by_a_person = sessions.is_user_activity(str(request.method), request.path, url_name)
        if by_a_person and request.session.accessed and SESSION_KEY in request.session:
            sessions.record_use(request.session, time.time())
        return response


class AuditMiddleware:
    """Middleware that records an audit event for each write request whose service recorded none.

    Such a request was denied, failed earlier, or its service lacks the call. The middleware runs outside
    authentication and CSRF, so that their refusals are recorded too. Read requests are not events.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if request.method not in ("GET", "HEAD", "OPTIONS", "TRACE"):
            audit.record_request(request, response)
        return response


class NoStoreMiddleware:
    """Middleware that forbids caches to store answers, unless the view has chosen otherwise.

    Nearly all answers depend on the session or the token. Static files don't pass here.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response.headers.setdefault("Cache-Control", "private, no-store")
        return response
