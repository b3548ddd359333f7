"""Login and logout: with a password and possibly a code, or at an identity provider.

django-axes counts failures.
"""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import get_user_model
from django.contrib.auth import login as begin_session
from django.contrib.auth.views import LoginView, LogoutView
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from broker_core.errors import OperatorError
from console.access.rights import PublicAccess
from console.choices import AuditResult
from console.forms.account import TotpCodeForm
from console.forms.login import LoginForm
from console.services import audit, oidc, proof, second_factor
from console.services.actors import Actor, actor_of
from console.views.common import requires_permission

HALF_IN = "half_in"
"""Session key of an account that gave its password, but not yet its code."""
HALF_IN_S = 300
"""Seconds that such an account has to give the code."""


class _Login(LoginView):
    """Login page with name and password. An account that needs a code continues at the second factor."""

    template_name = "login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        """Return Django's context, with the identity provider's label if there is one."""
        return {
            **super().get_context_data(**more),
            "oidc_label": settings.SLUICE_OIDC_LABEL if oidc.is_configured() else "",
        }

    def form_valid(self, form: Any) -> HttpResponse:
        """Log in, or continue with the second factor."""
        user = form.get_user()
        if not second_factor.is_required(user):
            return super().form_valid(form)
        self.request.session.cycle_key()
        self.request.session[HALF_IN] = {
            "user": user.pk,
            "hash": user.get_session_auth_hash(),
            "at": time.time(),
            "backend": user.backend,
            "next": self.get_success_url(),
        }
        anonymous = actor_of(self.request)
        audit.record(
            Actor(anonymous.kind, user.get_username(), user.pk, anonymous.source, anonymous.request_id),
            "login.password",
            f"operator {user.get_username()}",
            message="The password was right. The code is required next.",
        )
        return redirect("second_factor")


login = requires_permission(PublicAccess.EVERYONE)(_Login.as_view())
logout = requires_permission(PublicAccess.OWN_ACCOUNT)(LogoutView.as_view())


@requires_permission(PublicAccess.EVERYONE)
@never_cache
@require_http_methods(["GET", "POST"])
def second_factor_page(request: HttpRequest) -> HttpResponse:
    """Ask for the code after a right password, and log in.

    Shows the app's key if every account must have a second factor and this one has none yet.
    """
    half = request.session.get(HALF_IN)
    user = None if half is None else get_user_model().objects.filter(pk=half["user"], is_active=True).first()
    # The password may have changed, or the account may have been deactivated, since the first step.
    if (
        half is None
        or user is None
        or time.time() - half["at"] > HALF_IN_S
        or half["hash"] != user.get_session_auth_hash()
    ):
        request.session.pop(HALF_IN, None)
        if request.method == "POST":
            proof.count_failure(request, "")
        return redirect("login")
    fresh = not second_factor.is_enabled(user)
    form = TotpCodeForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and not form.is_valid():
        audit.mark_read_only(request)  # no code was tried
    if request.method == "POST":
        # The lock is checked before the code, so that a locked name gets no answer about its code.
        proof.refuse_if_locked(request, user.get_username())
        if form.is_valid():
            try:
                with proof.counted_guess(request, user.get_username()):
                    if fresh:
                        request.user = user
                        second_factor.confirm(
                            actor_of(request), user, half.get("device", 0), form.cleaned_data["code"]
                        )
                    else:
                        second_factor.check(user, form.cleaned_data["code"])
            except OperatorError as problem:
                if problem.code == "locked":
                    raise
                form.add_error("code", problem.sentence)
            else:
                # The half-login is removed so that its password step can't be used twice.
                del request.session[HALF_IN]
                begin_session(request, user, backend=half["backend"])
                return redirect(half["next"])
    context: dict[str, Any] = {"form": form}
    if fresh:
        device = second_factor.find_offered(user, half.get("device")) or second_factor.offer_device(user)
        request.session[HALF_IN] = {**half, "device": device.pk}
        context |= {"picture": second_factor.qr_code(device), "secret": second_factor.format_key(device)}
    return render(request, "second_factor.html", context)


@requires_permission(PublicAccess.EVERYONE)
@never_cache
@require_GET
def oidc_begin(request: HttpRequest) -> HttpResponse:
    """Redirect to the identity provider."""
    if not oidc.is_configured():
        raise Http404
    next_url = request.GET.get("next", "")
    inside = url_has_allowed_host_and_scheme(next_url, {request.get_host()}, request.is_secure())
    request.session["oidc_next"] = next_url if inside else ""
    try:
        answer: HttpResponse = oidc.begin(request, request.build_absolute_uri(reverse("oidc_back")))
    except OperatorError as problem:
        return _not_let_in(request, problem)
    return answer


@requires_permission(PublicAccess.EVERYONE)
@never_cache
@require_GET
def oidc_callback(request: HttpRequest) -> HttpResponse:
    """Log in with the single-use code that the identity provider returned."""
    if not oidc.is_configured():
        raise Http404
    try:
        user = oidc.account_of(oidc.finish(request))
    except OperatorError as problem:
        return _not_let_in(request, problem)
    next_url = request.session.pop("oidc_next", "")
    begin_session(request, user, backend=settings.AUTHENTICATION_BACKENDS[-1])
    return redirect(next_url or settings.LOGIN_REDIRECT_URL)


def _not_let_in(request: HttpRequest, problem: OperatorError) -> HttpResponse:
    """Record a refused login at the identity provider, and show the login page."""
    audit.record(
        actor_of(request),
        "login",
        "by the identity provider",
        result=AuditResult.DENIED,
        message=problem.sentence,
    )
    messages.error(request, f"{problem.sentence} {problem.fix}")
    return redirect("login")
