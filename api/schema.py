"""OpenAPI document at /api/v1/schema, and its description of API tokens."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.views import SpectacularAPIView

from api.permissions import DeclaredPermission
from api.views.view import ApiView
from console.access.rights import PublicAccess


class SchemaView(ApiView, SpectacularAPIView):
    """OpenAPI document of this API. Every logged-in account may read it."""

    permission_classes = [DeclaredPermission]
    needs = {"GET": PublicAccess.OWN_ACCOUNT}


class TokenScheme(OpenApiAuthenticationExtension):
    """drf-spectacular extension that describes `Authorization: Bearer slc_…`."""

    target_class = "api.auth.TokenAuthentication"
    name = "apiToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """Return the OpenAPI security scheme of API tokens."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "slc_<prefix>_<secret>"}
