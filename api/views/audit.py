"""View of the audit log."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.serializers.audit import AuditSerializer
from api.views.lists import PagedView, filter_parameters, filtered
from console.choices import Permission
from console.models import AuditEvent
from console.queries.filters import AuditFilter


class AuditView(PagedView):
    """Audit log of the installation."""

    needs = {"GET": Permission.READ_AUDIT}
    whole_installation = True

    @extend_schema(parameters=filter_parameters(AuditFilter), responses=AuditSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List changes, failed attempts and refusals, newest first."""
        return self.page(filtered(AuditFilter, request, AuditEvent.objects.all()), AuditSerializer)
