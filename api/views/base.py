"""Helpers for views: request validation, instance and member parameters, ETags."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from api.views.lists import PagedView
from broker_core.errors import OperatorError
from console import current_instance
from console.services.actors import access_of_request

__all__ = [
    "PagedView",
    "expected_revision",
    "instance_name",
    "member_name",
    "parse_request",
    "required_revision",
    "set_etag",
    "visible_patterns",
]


def parse_request(serializer: type[serializers.Serializer[Any]], data: Any) -> dict[str, Any]:
    """Return the validated data of a request's body or query. Raises DRF's ValidationError."""
    reader = serializer(data=data)
    reader.is_valid(raise_exception=True)
    return dict(reader.validated_data)


def instance_name(request: Request) -> str | None:
    """Return the `instance` query parameter, or None for the session's instance or the installation's own."""
    return request.query_params.get("instance") or None


def member_name(request: Request) -> str:
    """Return the `member` query parameter, or "" for all members of a group."""
    return request.query_params.get("member", "")


def visible_patterns(request: Request) -> list[str] | None:
    """Return name patterns of the clients that the caller may see on the requested instance.

    None means all clients.
    """
    return access_of_request(request).client_patterns(current_instance.instance_name())


def expected_revision(request: Request) -> int | None:
    """Return the revision in the If-Match header.

    None without the header, and for `*`. Raises OperatorError `bad_if_match`.
    """
    header = request.headers.get("If-Match", "").strip()
    if header in ("", "*"):
        return None
    number = header.removeprefix("W/").strip('"')
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise OperatorError(
            "bad_if_match", 'If-Match must be the ETag of a revision, like "3".', "Send it as given."
        )
    return int(number)


def required_revision(request: Request) -> int | None:
    """Return the revision in the If-Match header, which must be present; None for `*`, any revision.

    Raises OperatorError `if_match_needed` or `bad_if_match`.
    """
    if not request.headers.get("If-Match", "").strip():
        raise OperatorError(
            "if_match_needed",
            "A change must name its base version, so that it can't overwrite another edit.",
            "Send the ETag of your last GET as If-Match, or * to overwrite any version.",
        )
    return expected_revision(request)


def set_etag(response: Response, revision: int) -> Response:
    """Set the response's ETag to a revision; return the response."""
    response["ETag"] = f'"{revision}"'
    return response
