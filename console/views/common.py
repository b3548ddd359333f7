"""What the pages share: who asks, what they may do, and how a broker that is away is shown instead of an error page."""

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


def requires_permission(
    need: Need, *, client: str = "", whole_installation: bool = False
) -> Callable[[View], View]:
    """For every page: declares what it needs, and asks console/services/access.py for it.

    `client` names the URL's argument that is a client's name, when the page is about one.
    """

    def declare(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if isinstance(need, Permission):
                instance = "" if whole_installation else current_instance.instance_name()
                check_permission(request, need, instance=instance, client=str(kwargs.get(client, "")))
            return view(request, *args, **kwargs)

        guarded.needs = need  # type: ignore[attr-defined]  # a test walks all addresses and looks here
        return guarded if need is PublicAccess.EVERYONE else _logged_in(guarded)

    return declare


def refuse_field(form: Form, field: str, problem: OperatorError) -> None:
    """Show why a secret was refused beside its field. A locked name is answered by the login gate instead."""
    if problem.code in ("locked", "login_busy"):
        raise problem
    form.add_error(field, f"{problem.sentence} {problem.fix}")


def _logged_in(view: View) -> View:
    to_log_in: View = login_required(view)

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method in SAFE or request.user.is_authenticated:
            return to_log_in(request, *args, **kwargs)
        # Whoever logs in again comes to the page they acted on: an address that takes acts alone can't be gone to.
        there = redirect_to_login(referring_page(request))
        if request.headers.get("HX-Request"):
            return HttpResponse(status=204, headers={"HX-Redirect": there["Location"]})
        return there

    return guarded


def referring_page(request: HttpRequest) -> str:
    """The page of ours that one came from."""
    came: str = request.META.get("HTTP_REFERER", "")
    if url_has_allowed_host_and_scheme(came, {request.get_host()}):
        parts = urlsplit(came)
        return parts.path + (f"?{parts.query}" if parts.query else "")
    return "/"


def check_permission(request: HttpRequest, permission: Permission, **about: str) -> None:
    """Raise PermissionDenied unless they may: for what a page learns from its form or from a row."""
    try:
        access.require_permission(actor_of(request), permission, **about)
    except OperatorError as refused:
        raise PermissionDenied(f"{refused.sentence} {refused.fix}") from refused


def visible_patterns(request: HttpRequest) -> list[str] | None:
    """Name patterns of the clients that they may see; None is all."""
    return access_of_request(request).client_patterns(current_instance.instance_name())


def allowed_permissions(request: HttpRequest) -> dict[str, bool]:
    """What the person may do somewhere on this instance, by permission: templates show buttons by it."""
    held = access_of_request(request).permissions
    return {str(one): one in held for one in Permission}


def permissions_context(request: HttpRequest) -> dict[str, Any]:
    """Context processor: `may` in every template, asked for when a template looks."""
    return {"may": SimpleLazyObject(lambda: allowed_permissions(request))}


def preferences(request: HttpRequest) -> UserPreferences:
    """How the person wants the console; read once a request."""
    kept: UserPreferences | None = getattr(request, "_preferences", None)
    if kept is None:
        user = getattr(request, "user", None)
        kept = preferences_of(user.pk if user is not None else None)
        request._preferences = kept  # type: ignore[attr-defined]  # kept for the request
    return kept


def preferences_context(request: HttpRequest) -> dict[str, Any]:
    """Context processor: `prefers` in every template."""
    return {"prefers": SimpleLazyObject(lambda: preferences(request))}


def page(request: HttpRequest, template: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
    """Render a page with what every page needs."""
    kept = {
        "sample_hours": settings.SLUICE_SAMPLE_RETENTION_HOURS,
        "minute_days": settings.SLUICE_MINUTE_RETENTION_DAYS,
    }
    return render(request, template, {"deliveries": list(DeliveryState), **kept, **context}, status=status)


def local_instance() -> Instance | None:
    """This installation's instance; None before its broker ever started."""
    try:
        return policies.instance_named()
    except OperatorError:
        return None


def show_error(request: HttpRequest, problem: SluiceError) -> None:
    """Show an error as a message on the next page."""
    messages.error(request, f"{problem.sentence} {problem.fix}".strip())


def in_force() -> dict[str, Any]:
    """Return how many members run the wanted revision, and why the others don't.

    `overdue`: one that doesn't has had the time to take it up.
    """
    own = current_instance.instance_name()
    states = [state for state in policies.installation_policy_status() if state["instance"] == own]
    converged = sum(state["converged"] for state in states)
    wanted = max((state["wanted"] for state in states), default=0)
    return {
        "in_force": states, "wanted": wanted, "instances_count": len(states), "converged_count": converged,
        "counted": "member" if any(state["member"] for state in states) else "instance",
        "set_back": any(state["set_back"] for state in states),
        "converged_all": bool(states) and converged == len(states),
        "overdue": converged < len(states) and system_conditions.is_overdue(policies.instance_named(own)),
    }  # fmt: skip
