"""The base of every view: what a request may say that no serializer sees."""

from __future__ import annotations

from typing import Any, ClassVar

from django.utils import timezone
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from api.openapi import CSV, MISSING, MemberSource, documented_parameters
from console.broker_link import collect_unreachable
from console.queries.missing_members import MissingMember, members_without_reports, unreachable_members
from console.queries.policies import instance_named

_known: dict[tuple[type[APIView], str], list[str]] = {}


class ApiView(APIView):
    """A view that takes the query parameters which the OpenAPI document has for it, and no others. Of a group it says whose part
    its answer lacks."""

    of_members: ClassVar[MemberSource | None] = None
    """Where what it answers comes from, if from every member of a group."""

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """DRF's, and notes who couldn't be asked meanwhile."""
        with collect_unreachable() as self._unreached:
            return super().dispatch(request, *args, **kwargs)

    def missing(self) -> list[MissingMember]:
        """Whose part the answer lacks, once everything for it was asked."""
        if self.of_members is not MemberSource.STORED:
            return unreachable_members(self._unreached)
        if self._silent is None:
            asked = self.request.query_params
            instance = instance_named(asked.get("instance") or None)
            self._silent = members_without_reports(instance, timezone.now(), asked.get("member", ""))
        return self._silent

    _silent: list[MissingMember] | None = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """DRF's own (who asks, may they), then the address. Raises ValidationError for parameters that aren't known."""
        super().initial(request, *args, **kwargs)
        if any("\0" in str(value) for value in kwargs.values()):
            raise NotFound()
        known = _known.setdefault(
            (type(self), str(request.method)), sorted(documented_parameters(self, str(request.method)))
        )
        if unknown := sorted(set(request.query_params) - set(known)):
            there = f"Known: {', '.join(known)}." if known else "There is none."
            raise ValidationError({name[:100]: [f"No such parameter. {there}"] for name in unknown[:20]})

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        """DRF's; an error is JSON, whatever a view gives otherwise."""
        made = super().finalize_response(request, response, *args, **kwargs)
        if getattr(made, "exception", False):
            made.accepted_renderer, made.accepted_media_type = JSONRenderer(), JSONRenderer.media_type
        elif self.of_members is not None and (names := [one.member for one in self.missing()]):
            made[MISSING] = ", ".join(names)
            if getattr(made, "accepted_media_type", "").startswith(CSV):  # who keeps the file sees no header
                what = request.path.rstrip("/").rpartition("/")[2]
                made["Content-Disposition"] = f'attachment; filename="{what}-without-{"-".join(names)}.csv"'
        return made
