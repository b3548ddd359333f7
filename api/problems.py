"""Errors as problem+json (RFC 9457), and the one table from our codes to HTTP statuses."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response

from broker_core.errors import SluiceError

CONTENT_TYPE = "application/problem+json"

STATUS = {
    "unknown_instance": HTTPStatus.NOT_FOUND,
    "unknown_transport": HTTPStatus.NOT_FOUND,
    "unknown_client": HTTPStatus.NOT_FOUND,
    "unknown_subscription": HTTPStatus.NOT_FOUND,
    "unknown_durable": HTTPStatus.NOT_FOUND,
    "not_live": HTTPStatus.CONFLICT,
    "unknown_replay": HTTPStatus.NOT_FOUND,
    "replay_exists": HTTPStatus.CONFLICT,
    "replay_ended": HTTPStatus.CONFLICT,
    "replay_not_ended": HTTPStatus.CONFLICT,
    "unknown_revision": HTTPStatus.NOT_FOUND,
    "unknown_draft": HTTPStatus.NOT_FOUND,
    "if_match_needed": HTTPStatus.PRECONDITION_REQUIRED,
    "draft_changed": HTTPStatus.PRECONDITION_FAILED,
    "too_many_drafts": HTTPStatus.CONFLICT,
    "no_rollout": HTTPStatus.CONFLICT,
    "unknown_run": HTTPStatus.NOT_FOUND,
    "unknown_token": HTTPStatus.NOT_FOUND,
    "unknown_person": HTTPStatus.NOT_FOUND,
    "unknown_grant": HTTPStatus.NOT_FOUND,
    "last_administrator": HTTPStatus.CONFLICT,
    "unknown_action": HTTPStatus.NOT_FOUND,
    "unknown_job": HTTPStatus.NOT_FOUND,
    "unknown_path": HTTPStatus.NOT_FOUND,
    "not_allowed": HTTPStatus.FORBIDDEN,
    "name_taken": HTTPStatus.CONFLICT,
    "run_in_progress": HTTPStatus.CONFLICT,
    "run_ended": HTTPStatus.CONFLICT,
    "not_awaiting": HTTPStatus.CONFLICT,
    "not_repeatable": HTTPStatus.CONFLICT,
    "plan_changed": HTTPStatus.CONFLICT,
    "plan_needed": HTTPStatus.CONFLICT,
    "own_run": HTTPStatus.FORBIDDEN,
    "idempotency_key_reused": HTTPStatus.UNPROCESSABLE_ENTITY,
    "immutable": HTTPStatus.CONFLICT,
    "revision_changed": HTTPStatus.PRECONDITION_FAILED,
    "disk_full": HTTPStatus.INSUFFICIENT_STORAGE,
    "journal_failed": HTTPStatus.INTERNAL_SERVER_ERROR,
    "broker_away": HTTPStatus.SERVICE_UNAVAILABLE,
    "queue_away": HTTPStatus.SERVICE_UNAVAILABLE,
    "redis_away": HTTPStatus.SERVICE_UNAVAILABLE,
}
"""Every other code of ours is the request's fault: 400."""

RETRY_AFTER_S = 5


def handle(problem: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler. None lets Django answer 500 and log the traceback."""
    if isinstance(problem, SluiceError):
        return _ours(problem)
    if isinstance(problem, Http404):
        problem = exceptions.NotFound()
    elif isinstance(problem, PermissionDenied):
        problem = exceptions.PermissionDenied()
    if not isinstance(problem, exceptions.APIException):
        return None
    return _drf(problem)


def _ours(problem: SluiceError) -> Response:
    status = STATUS.get(problem.code, HTTPStatus.BAD_REQUEST)
    answer = body(status, problem.code, problem.sentence, problem.fix, problem.details)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        answer["Retry-After"] = str(RETRY_AFTER_S)
    return answer


def _drf(problem: exceptions.APIException) -> Response:
    status, details, sentence = HTTPStatus(problem.status_code), {}, ""
    if isinstance(problem, exceptions.ValidationError):
        code, details = "bad_request", {"fields": problem.detail}
        sentence = "Some fields can't be used."
    else:
        code, sentence = str(problem.default_code), str(problem.detail)
    answer = body(status, code, sentence, "", details)
    if challenge := getattr(problem, "auth_header", None):
        answer["WWW-Authenticate"] = challenge
    if (wait := getattr(problem, "wait", None)) is not None:
        answer["Retry-After"] = str(int(wait) + 1)
    return answer


def body(status: HTTPStatus, code: str, detail: str, fix: str = "", details: Any = None) -> Response:
    """One problem: RFC 9457's members, and our code, fix and details beside them."""
    return Response(
        {
            "type": f"urn:sluice:problem:{code}",
            "title": status.phrase,
            "status": int(status),
            "detail": detail,
            "code": code,
            "fix": fix,
            "details": details or {},
        },
        status=int(status),
        content_type=CONTENT_TYPE,
    )

