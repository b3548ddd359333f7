"""Base class of API views: checks the query parameters, and reports missing group members."""

from __future__ import annotations

from typing import Any, ClassVar

from django.utils import timezone
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from api.openapi import CSV, MISSING, MemberSource, documented_parameters
from console import current_instance
from console.broker_link import collect_unreachable
from console.queries.missing_members import MissingMember, members_without_reports, unreachable_members
from console.queries.policies import instance_named

_known: dict[tuple[type[APIView], str], list[str]] = {}
"""Sorted names of the query parameters of each view class and method."""


class ApiView(APIView):
    """API view that rejects query parameters that the OpenAPI document does not list.

    For a group the response names the members whose data is missing.
    """

    of_members: ClassVar[MemberSource | None] = None
    """Source of the response's data, if it combines all members of a group."""

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Handle the request for its instance, and record the members that could not be reached."""
        named = request.GET.get("instance", "")
        with current_instance.use_instance(named), collect_unreachable() as self._unreached:
            return super().dispatch(request, *args, **kwargs)

    def missing(self) -> list[MissingMember]:
        """Return the members whose data is missing. Call it after all data has been requested."""
        if self.of_members is not MemberSource.STORED:
            return unreachable_members(self._unreached)
        if self._silent is None:
            parameters = self.request.query_params
            instance = instance_named(parameters.get("instance") or None)
            self._silent = members_without_reports(instance, timezone.now(), parameters.get("member", ""))
        return self._silent

    _silent: list[MissingMember] | None = None
    """Members without recent reports, once `missing` has computed them."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate, check permissions, then check the query parameters.

        Raises ValidationError for unknown parameters, NotFound for a NUL character in the path.
        """
        super().initial(request, *args, **kwargs)
        if any("\0" in str(value) for value in kwargs.values()):
            raise NotFound()
        known = _known.setdefault(
            (type(self), str(request.method)), sorted(documented_parameters(self, str(request.method)))
        )
        if unknown := sorted(set(request.query_params) - set(known)):
            there = f"Known: {', '.join(known)}." if known else "This address has no parameters."
            raise ValidationError(
                {name[:100]: [f"The parameter doesn't exist. {there}"] for name in unknown[:20]}
            )

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the response with errors as JSON and missing members in the `Sluice-Missing` header."""
        made = super().finalize_response(request, response, *args, **kwargs)
        if getattr(made, "exception", False):
            made.accepted_renderer, made.accepted_media_type = JSONRenderer(), JSONRenderer.media_type
        elif self.of_members is not None and (names := [one.member for one in self.missing()]):
            made[MISSING] = ", ".join(names)
            # a saved CSV file lacks the header, so its name lists the missing members
            if getattr(made, "accepted_media_type", "").startswith(CSV):
                file_stem = request.path.rstrip("/").rpartition("/")[2]
                made["Content-Disposition"] = (
                    f'attachment; filename="{file_stem}-without-{"-".join(names)}.csv"'
                )
        return made
