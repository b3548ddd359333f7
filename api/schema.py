"""Tells drf-spectacular how API tokens are sent, so that /api/v1/schema says it."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.views import SpectacularAPIView

from api.permissions import DeclaredPermission
from api.views.view import ApiView
from console.access.rights import PublicAccess


class SchemaView(ApiView, SpectacularAPIView):
    """The OpenAPI document, for everyone who is logged in."""

    permission_classes = [DeclaredPermission]
    needs = {"GET": PublicAccess.OWN_ACCOUNT}


class TokenScheme(OpenApiAuthenticationExtension):
    """`Authorization: Bearer slc_…`."""

    target_class = "api.auth.TokenAuthentication"
    name = "apiToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """The OpenAPI security scheme."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "slc_<prefix>_<secret>"}
