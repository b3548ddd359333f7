"""What the views share."""

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
    """The checked data of a request's body or query. Raises DRF's ValidationError."""
    reader = serializer(data=data)
    reader.is_valid(raise_exception=True)
    return dict(reader.validated_data)


def instance_name(request: Request) -> str | None:
    """`?instance=`, or None for this installation's own."""
    return request.query_params.get("instance") or None


def member_name(request: Request) -> str:
    """`?member=`, or "" for all of a group."""
    return request.query_params.get("member", "")


def visible_patterns(request: Request) -> list[str] | None:
    """Name patterns of the clients that the caller may see on the instance asked for; None is all."""
    return access_of_request(request).client_patterns(
        instance_name(request) or current_instance.instance_name()
    )


def expected_revision(request: Request) -> int | None:
    """The revision in If-Match; None when there is no such header. Raises OperatorError bad_if_match."""
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
    """As `expected_revision`, where a change must say what it was made for. Raises OperatorError if_match_needed.

    None is `If-Match: *`: whatever it is by now.
    """
    if not request.headers.get("If-Match", "").strip():
        raise OperatorError(
            "if_match_needed",
            "A change must say which version it is based on, so that nobody's edit is lost.",
            "Send the ETag of your last GET as If-Match, or * to overwrite whatever is there.",
        )
    return expected_revision(request)


def set_etag(response: Response, revision: int) -> Response:
    """Give the revision as the answer's ETag."""
    response["ETag"] = f'"{revision}"'
    return response
