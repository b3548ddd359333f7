"""Helpers of pages: permissions, preferences, rendering, and errors of an unavailable broker."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.forms import Form
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils.functional import SimpleLazyObject
from django.utils.http import url_has_allowed_host_and_scheme

from broker_core.documents.clients import DeliveryState
from broker_core.errors import OperatorError, SluiceError
from console import current_instance
from console.access.rights import Need, PublicAccess
from console.choices import Permission
from console.models import Instance, UserPreferences
from console.queries import policies, system_conditions
from console.queries.policy_redaction import visible_status
from console.services import access
from console.services.actors import access_of_request, actor_of
from console.services.preferences import preferences_of

__all__ = [
    "actor_of",
    "allowed_permissions",
    "check_permission",
    "in_force",
    "local_instance",
    "page",
    "referring_page",
    "refuse_field",
    "requires_permission",
    "show_error",
    "visible_patterns",
]

View = Callable[..., HttpResponseBase]

SAFE = frozenset({"GET", "HEAD"})
"""HTTP methods that change nothing."""


def requires_permission(
    need: Need, *, client: str = "", whole_installation: bool = False
) -> Callable[[View], View]:
    """Return a decorator that declares a view's permission and checks it with console/services/access.py.

    Every page must have it.

    Args:
        client: URL argument with the name of the client that the page is about.
        whole_installation: Whether the permission is needed for every instance.
    """

    def declare(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if isinstance(need, Permission):
                instance = "" if whole_installation else current_instance.instance_name()
                check_permission(request, need, instance=instance, client=str(kwargs.get(client, "")))
            return view(request, *args, **kwargs)

        # a test checks this attribute for all addresses
        guarded.needs = need  # type: ignore[attr-defined]  # a test walks all addresses and looks here
        return guarded if need is PublicAccess.EVERYONE else _logged_in(guarded)

    return declare


def refuse_field(form: Form, field: str, problem: OperatorError) -> None:
    """Show beside a field why its secret was refused.

    For a locked name the error is raised: the login gate answers it.
    """
    if problem.code in ("locked", "login_busy"):
        raise problem
    form.add_error(field, f"{problem.sentence} {problem.fix}")


def _logged_in(view: View) -> View:
    """Return the view with a redirect to the login for anonymous requests."""
    to_log_in: View = login_required(view)

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method in SAFE or request.user.is_authenticated:
            return to_log_in(request, *args, **kwargs)
        # After the login the browser returns to the page that sent the request, since this URL accepts only
        # POST.
        there = redirect_to_login(referring_page(request))
        if request.headers.get("HX-Request"):
            return HttpResponse(status=204, headers={"HX-Redirect": there["Location"]})
        return there

    return guarded


def referring_page(request: HttpRequest) -> str:
    """Return the path of the console's page that sent the request, or "/"."""
    referrer: str = request.META.get("HTTP_REFERER", "")
    if url_has_allowed_host_and_scheme(referrer, {request.get_host()}):
        parts = urlsplit(referrer)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return "/"


def check_permission(request: HttpRequest, permission: Permission, **about: str) -> None:
    """Raise PermissionDenied unless the caller has the permission, on the page's instance if none is given.

    For permissions that depend on a form or a row.
    """
    try:
        access.require_permission(
            actor_of(request), permission, **{"instance": current_instance.instance_name(), **about}
        )
    except OperatorError as refused:
        raise PermissionDenied(f"{refused.sentence} {refused.fix}") from refused


def visible_patterns(request: HttpRequest) -> list[str] | None:
    """Return name patterns of the clients that the caller may see; None means all."""
    return access_of_request(request).client_patterns(current_instance.instance_name())


def allowed_permissions(request: HttpRequest) -> dict[str, bool]:
    """Return whether the caller has each permission somewhere on this instance.

    Templates show buttons accordingly.
    """
    granted = access_of_request(request).permissions
    return {str(one): one in granted for one in Permission}


def permissions_context(request: HttpRequest) -> dict[str, Any]:
    """Add `may` to every template (context processor), computed on first use."""
    return {"may": SimpleLazyObject(lambda: allowed_permissions(request))}


def preferences(request: HttpRequest) -> UserPreferences:
    """Return the operator's preferences, read once per request."""
    found: UserPreferences | None = getattr(request, "_preferences", None)
    if found is None:
        user = getattr(request, "user", None)
        found = preferences_of(user.pk if user is not None else None)
        # cached for the request
        request._preferences = found  # type: ignore[attr-defined]  # cached for the request
    return found


def preferences_context(request: HttpRequest) -> dict[str, Any]:
    """Add `prefers` to every template (context processor)."""
    return {"prefers": SimpleLazyObject(lambda: preferences(request))}


def page(request: HttpRequest, template: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
    """Render a page with the context that every page needs."""
    retention = {
        "sample_hours": settings.SLUICE_SAMPLE_RETENTION_HOURS,
        "minute_days": settings.SLUICE_MINUTE_RETENTION_DAYS,
    }
    return render(
        request, template, {"deliveries": list(DeliveryState), **retention, **context}, status=status
    )


def local_instance() -> Instance | None:
    """Return this installation's instance; None before the first start of its broker."""
    try:
        return policies.instance_named()
    except OperatorError:
        return None


def show_error(request: HttpRequest, problem: SluiceError) -> None:
    """Show an error as a message on the next page."""
    messages.error(request, f"{problem.sentence} {problem.fix}".strip())


def in_force(request: HttpRequest) -> dict[str, Any]:
    """Return the number of members that run the newest revision, and the reasons of the others.

    `overdue`: at least one of the others had enough time to apply it.
    """
    local_name = current_instance.instance_name()
    patterns = visible_patterns(request)
    states = [
        visible_status(state, patterns)
        for state in policies.installation_policy_status()
        if state["instance"] == local_name
    ]
    converged = sum(state["converged"] for state in states)
    newest = max((state["wanted"] for state in states), default=0)
    return {
        "in_force": states,
        "newest_revision": newest,
        "instances_count": len(states),
        "converged_count": converged,
        "counted": "member" if any(state["member"] for state in states) else "instance",
        "set_back": any(state["set_back"] for state in states),
        "is_converged": bool(states) and converged == len(states),
        "overdue": converged < len(states)
        and system_conditions.is_overdue(policies.instance_named(local_name)),
    }
