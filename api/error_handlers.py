"""Answers to errors that occur outside DRF: an HTML page for browsers, a problem document under /api/.

`console/project/urls.py` and the settings name these handlers.
"""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import Any

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views import defaults
from rest_framework.permissions import SAFE_METHODS

from api.problems import CONTENT_TYPE, problem_json
from console.views import errors as pages


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 404 to a request for an unknown address."""
    if not _is_api(request):
        return pages.not_found(request, exception)
    return _problem(HTTPStatus.NOT_FOUND, "not_found", f"No resource has the address {request.path[:200]}.")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 400 to a request that Django rejects: an unknown host, or a body that is too large."""
    if not _is_api(request):
        return defaults.bad_request(request, exception)
    return _problem(HTTPStatus.BAD_REQUEST, "bad_request", "The request is invalid.")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 403 to a request that Django forbids."""
    if not _is_api(request):
        return defaults.permission_denied(request, exception)
    return _problem(HTTPStatus.FORBIDDEN, "permission_denied", "You don't have the permission for this.")


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer 500 to a request whose view raised an exception, or 503 if it is a DatabaseError.

    Must be called while the exception is being handled.
    """
    if not _is_api(request):
        return pages.server_error(request)
    if isinstance(sys.exc_info()[1], DatabaseError):
        answer = _problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "database_away",
            "The database can't be reached, or can't be written.",
            "Check that the database runs and has free disk space."
            + (
                ""
                if request.method in SAFE_METHODS
                else " The request may have been carried out: check before you repeat it."
            ),
        )
        answer["Retry-After"] = "5"
        return answer
    request_id = getattr(request, "request_id", "")
    return _problem(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "error",
        "The API failed to process the request.",
        f"Search for {request_id} in the log of the web process.",
    )


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Answer 403 to a form without a valid CSRF token."""
    if not _is_api(request):
        return pages.csrf_failed(request)
    return _problem(HTTPStatus.FORBIDDEN, "permission_denied", "The CSRF token is missing or wrong.")


def _is_api(request: HttpRequest) -> bool:
    return request.path.startswith("/api/")


def _problem(status: HTTPStatus, code: str, detail: str, fix: str = "") -> JsonResponse:
    body: dict[str, Any] = problem_json(status, code, detail, fix)
    return JsonResponse(body, status=status, content_type=CONTENT_TYPE)
