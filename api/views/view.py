"""The base of every view: what a request may say that no serializer sees."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from api.contract import query_parameters

_known: dict[tuple[type[APIView], str], list[str]] = {}


class ApiView(APIView):
    """A view that takes the query parameters which the OpenAPI document has for it, and no others."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """DRF's own (who asks, may they), then the address. Raises ValidationError for parameters that aren't known."""
        super().initial(request, *args, **kwargs)
        if any("\0" in str(value) for value in kwargs.values()):
            raise NotFound()
        known = _known.setdefault(
            (type(self), str(request.method)), sorted(query_parameters(self, str(request.method)))
        )
        if unknown := sorted(set(request.query_params) - set(known)):
            there = f"Known: {', '.join(known)}." if known else "There is none."
            raise ValidationError({name[:100]: [f"No such parameter. {there}"] for name in unknown[:20]})

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        """DRF's; an error is JSON, whatever a view gives otherwise."""
        made = super().finalize_response(request, response, *args, **kwargs)
        if getattr(made, "exception", False):
            made.accepted_renderer, made.accepted_media_type = JSONRenderer(), JSONRenderer.media_type
        return made
