"""What the pages share: who asks, who may change, and how a broker that is away is shown instead of an error page."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from broker_core.errors import OperatorError, SluiceError
from console.choices import ActorKind
from console.models import Instance
from console.queries import policies
from console.services.actors import Actor

View = Callable[..., HttpResponse]

CLIENT_STATES = ("live", "replaying", "offlined", "draining")


def actor_of(request: HttpRequest) -> Actor:
    """The person behind a page's request, for services and the audit."""
    user = request.user
    return Actor(
        ActorKind.PERSON, user.get_username(), user.pk,
        str(request.META.get("REMOTE_ADDR") or ""), str(getattr(request, "request_id", "")),
    )  # fmt: skip


def may_change(request: HttpRequest) -> bool:
    """Operators change things; everyone who is logged in may look."""
    return bool(request.user.is_active and request.user.is_staff)


def operator_required(view: View) -> View:
    """For views that change something: logged in, and an operator."""

    @login_required
    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not may_change(request):
            raise PermissionDenied("Only an operator may change this.")
        return view(request, *args, **kwargs)

    return guarded


def page(request: HttpRequest, template: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
    """Render a page with what every page needs."""
    return render(request, template, {"may_change": may_change(request), "client_states": CLIENT_STATES, **context}, status=status)


def own_instance() -> Instance | None:
    """This installation's instance; None before its broker ever started."""
    try:
        return policies.instance_named()
    except OperatorError:
        return None


def tell(request: HttpRequest, problem: SluiceError) -> None:
    """Show an error as a message on the next page."""
    messages.error(request, f"{problem.sentence} {problem.fix}".strip())


def in_force() -> dict[str, Any]:
    """ "Revision 7 in force on 1 of 2 instances", and why not where not."""
    states = policies.in_force_everywhere()
    converged = sum(state["converged"] for state in states)
    wanted = max((state["wanted"] for state in states), default=0)
    return {
        "in_force": states, "wanted": wanted, "instances_count": len(states), "converged_count": converged,
        "converged_all": bool(states) and converged == len(states),
    }  # fmt: skip
