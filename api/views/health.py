"""/healthz: this process answers. /readyz: everything it needs answers. For supervisors; no login."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from console.access.rights import PublicAccess
from console.queries.readiness import check_components
from console.views.common import requires_permission


@requires_permission(PublicAccess.EVERYONE)
@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """Always 200."""
    return JsonResponse({"ok": True})


@requires_permission(PublicAccess.EVERYONE)
@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """200 when database, Redis, worker and broker answer and no severe problem lasts, otherwise 503.

    The body lists the parts, and problems of groups and links that aren't severe too.
    """
    parts = check_components()
    ok = all(part["ok"] for part in parts)
    # Anybody may ask: sentences, which name addresses, are for those who log in.
    shown = [{key: value for key, value in part.items() if key not in ("entry", "stall")} for part in parts]
    answer = JsonResponse({"ok": ok, "parts": shown}, status=200 if ok else 503)
    # Starting up is no error: without this Django would log one at each of the supervisor's questions.
    answer._has_been_logged = True  # type: ignore[attr-defined]  # missing in the stubs
    return answer
