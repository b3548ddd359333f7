"""Error responses as problem+json (RFC 9457).

The error code table gives each code's status and retry delay.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from math import ceil
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response

from broker_core.error_codes import error_code_entry
from broker_core.errors import SluiceError

logger = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"


def exception_handler(problem: Exception, context: dict[str, Any]) -> Response | None:
    """Return the problem response for an exception of a view (DRF's exception handler).

    None for an unknown exception: Django then answers 500 and logs the traceback.
    """
    if isinstance(problem, SluiceError):
        return _ours(problem)
    if isinstance(problem, Http404):
        problem = exceptions.NotFound()
    elif isinstance(problem, PermissionDenied):
        problem = exceptions.PermissionDenied()
    if isinstance(problem, OverflowError | RecursionError):
        # Raised by any computation on request values: a year 9999 in another time zone, a number beyond the
        # database's range, a text of 10,000 brackets.
        logger.warning("a request's value is out of range", exc_info=problem)
        return problem_body(
            HTTPStatus.BAD_REQUEST, "bad_request", "A time, a number or a nesting level is out of range."
        )
    if not isinstance(problem, exceptions.APIException):
        return None
    return _drf(problem)


def _ours(problem: SluiceError) -> Response:
    """Return the response for an error of Sluice, with its status and retry delay from the code table."""
    entry = error_code_entry(problem.code)
    answer = problem_body(entry.http_status, problem.code, problem.sentence, problem.fix, problem.details)
    if wait_ms := problem.details.get("retry_after_ms") or entry.retry_after_ms:
        answer["Retry-After"] = str(ceil(wait_ms / 1_000))
    return answer


def _drf(problem: exceptions.APIException) -> Response:
    """Return the response for an exception of DRF."""
    status, details, sentence = HTTPStatus(problem.status_code), {}, ""
    if isinstance(problem, exceptions.ValidationError):
        code, details = "bad_request", {"fields": problem.detail}
        sentence = "Some fields are invalid."
    else:
        code, sentence = str(problem.default_code), str(problem.detail)
    answer = problem_body(status, code, sentence, "", details)
    if challenge := getattr(problem, "auth_header", None):
        answer["WWW-Authenticate"] = challenge
    if (wait := getattr(problem, "wait", None)) is not None:
        answer["Retry-After"] = str(int(wait) + 1)
    return answer


def problem_body(status: HTTPStatus, code: str, detail: str, fix: str = "", details: Any = None) -> Response:
    """Return a problem response: the members of RFC 9457, and `code`, `fix` and `details`."""
    return Response(
        problem_json(status, code, detail, fix, details), status=int(status), content_type=CONTENT_TYPE
    )


def problem_json(
    status: HTTPStatus, code: str, detail: str, fix: str = "", details: Any = None
) -> dict[str, Any]:
    """Return the JSON object of a problem."""
    return {
        "type": f"urn:sluice:problem:{code}",
        "title": status.phrase,
        "status": int(status),
        "detail": detail,
        "code": code,
        "fix": fix,
        "details": details or {},
    }
