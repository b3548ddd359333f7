"""Selection of the instance that a session's pages show."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from console import current_instance
from console.access.rights import PublicAccess
from console.queries import brokers
from console.services import audit
from console.services.actors import access_of_request
from console.views import common


@common.requires_permission(PublicAccess.OWN_ACCOUNT)
@require_POST
def choose_instance(request: HttpRequest) -> HttpResponse:
    """Select the instance for the pages of this session."""
    audit.mark_read_only(request)
    requested = request.POST.get("instance", "")
    if requested not in brokers.visible_instances(access_of_request(request)):
        raise PermissionDenied("The instance doesn't exist, or you lack the permission to see it.")
    request.session[current_instance.KEY] = requested
    return redirect("overview")
