"""Health checks for supervisors, without a login.

/healthz: this process answers. /readyz: everything that it depends on answers.
"""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from console.access.rights import PublicAccess
from console.queries.readiness import check_components
from console.views.common import requires_permission

_INTERNAL = ("entry", "stall", "database")
"""Fields of a component that name addresses or clients."""


@requires_permission(PublicAccess.EVERYONE)
@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """Return 200, which shows that this process answers."""
    return JsonResponse({"ok": True})


@requires_permission(PublicAccess.EVERYONE)
@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """Return 200 when database, Redis, worker and broker answer and no severe problem persists; otherwise
    503.

    The body lists these components. It includes problems of groups and links that are not severe.
    """
    parts = check_components()
    ok = all(part["ok"] for part in parts)
    # No login is needed, so sentences, which name addresses, are omitted.
    shown = [{key: value for key, value in part.items() if key not in _INTERNAL} for part in parts]
    answer = JsonResponse({"ok": ok, "parts": shown}, status=200 if ok else 503)
    # A component that is starting up is no error. Without this mark Django would log one for each check.
    answer._has_been_logged = True  # type: ignore[attr-defined]  # missing in the stubs
    return answer
