"""Parts of the OpenAPI document that no single view declares: errors, and parameters that many views share.

`api/views/view.py` checks requests against the parameters listed here, so document and behaviour agree.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import serializers

from api.permissions import declared_need
from console.choices import Permission

INSTANCE = OpenApiParameter("instance", str, description="The instance; default: that of this installation.")
MEMBER = OpenApiParameter(
    "member",
    str,
    description="Member of a group. Default: all members; for journals, the first member.",
)
IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    required=True,
    description='ETag of the resource to change, such as "3", or *.',
)
MISSING = "Sluice-Missing"
"""Response header that names the group members whose part an answer lacks."""


class MemberSource(Enum):
    """Source of an answer that combines the data of all members of a group."""

    NOW = auto()
    """The web process requests the data from the members."""
    STORED = auto()
    """The members have written the data to the database and Redis."""


PROBLEM = "application/problem+json"
CSV = "text/csv"


_LACKING = OpenApiParameter(
    MISSING,
    str,
    OpenApiParameter.HEADER,
    response=[200],
    description=(
        "Members of the group that are missing in the response, such as `b, c`. Absent if the "
        "response is complete."
    ),
)


class ProblemSerializer(serializers.Serializer[Any]):
    """Error (RFC 9457, problem details)."""

    type = serializers.CharField(help_text="urn:sluice:problem:CODE")
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField(allow_blank=True)
    code = serializers.CharField(help_text="docs/api.md lists them.")
    fix = serializers.CharField(allow_blank=True)
    details = serializers.DictField(help_text="Details of the problem; they depend on the code.")


class ContractSchema(AutoSchema):
    """OpenAPI generator that adds the error responses and the shared parameters to each operation."""

    def get_override_parameters(self) -> list[Any]:
        """Return the view's declared parameters and the shared ones, such as `instance`."""
        return [*super().get_override_parameters(), *_unsaid(self.view, self.method)]

    def _get_format_parameters(self) -> list[dict[str, Any]]:
        return super()._get_format_parameters() if self.method == "GET" else []

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        """Return the response bodies, with CSV as a string and the error responses added."""
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        for body in bodies.values():
            if CSV in body.get("content", {}):
                if self.method == "GET":
                    body["content"][CSV]["schema"] = {"type": "string"}
                else:
                    del body["content"][CSV]
        refused = OpenApiResponse(
            ProblemSerializer,
            description="The request was refused; the response has the reason and the remedy.",
        )
        failed = OpenApiResponse(ProblemSerializer, description="The server failed to process the request.")
        for status, response in (("4XX", refused), ("5XX", failed)):
            # drf-spectacular has no annotations.
            bodies[status] = self._get_response_for_code(  # type: ignore[no-untyped-call]
                response, status, media_types=[PROBLEM]
            )
        return bodies


def allow_null_in_any(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Correct a generated document for null values and defaults (hook of drf-spectacular).

    A field of any JSON type also accepts null. Its `oneOf` of null and {} would match null twice and so
    reject it. A default that is not among the field's choices is removed.
    """

    def mend(schema: Any) -> None:
        for one in (
            schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
        ):
            mend(one)
        if isinstance(schema, dict) and {} in (schema.get("oneOf") or ()):
            del schema["oneOf"]
        if isinstance(schema, dict) and schema.get("default") == "" and "" not in schema.get("enum", [""]):
            del schema["default"]  # "" means no choice

    mend(result)
    return result


def documented_parameters(view: Any, method: str) -> set[str]:
    """Return the names of the query parameters that the document lists for a view's method."""
    documented_method = "GET" if method in ("HEAD", "OPTIONS") else method
    handler = getattr(view, documented_method.lower(), None)
    declared = getattr(handler, "kwargs", {}).get("schema")
    if declared is None:
        found = _unsaid(view, documented_method)
    else:
        schema = declared()
        schema.view, schema.method = view, documented_method
        found = schema.get_override_parameters()
    names = _names(found)
    if documented_method == "GET":
        pagination = getattr(view, "pagination_class", None)
        names |= (
            {one["name"] for one in pagination().get_schema_operation_parameters(view)}
            if pagination
            else set()
        )
        names |= {"format"} if len(view.renderer_classes) > 1 else set()
    return names


def _unsaid(view: Any, method: str) -> list[Any]:
    """Return the shared parameters of a view's method, which the view does not declare."""
    is_global = getattr(view, "whole_installation", False)
    by_member = [MEMBER] if method in getattr(view, "by_member", ()) else []
    lacking = [_LACKING] if method == "GET" and getattr(view, "of_members", None) is not None else []
    parameters = (
        [INSTANCE, *by_member]
        if isinstance(declared_need(view, method), Permission) and not is_global
        else []
    )
    return [*parameters, *lacking]


def _names(declared: list[Any]) -> set[str]:
    """Return the names of query parameters. A serializer declares one parameter per field."""
    names: set[str] = set()
    for one in declared:
        if isinstance(one, OpenApiParameter):
            names |= {one.name} if one.location == OpenApiParameter.QUERY else set()
        else:
            names |= set((one() if isinstance(one, type) else one).fields)
    return names
