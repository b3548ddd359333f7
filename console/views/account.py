"""One's own account: password and second factor."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.signals import user_login_failed
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_POST

from broker_core.errors import OperatorError
from console.access.login_limit import hashing
from console.access.rights import Open
from console.forms.account import CodeForm, OwnPasswordForm, PasswordForm
from console.services import operators, second_factor
from console.views import common

own = common.permitted(Open.OWN_ACCOUNT)


@own
@require_GET
def account(request: HttpRequest) -> HttpResponse:
    """Password and second factor."""
    return _show(request)


@own
@sensitive_post_parameters()
@require_POST
def password(request: HttpRequest) -> HttpResponse:
    """A new password, with the old one. One's other sessions end."""
    _by_password_alone(request)
    form = OwnPasswordForm(request.user, request.POST)
    if not form.is_valid():
        if "old_password" in form.errors:
            _failed(request)
        return _show(request, {"password_form": form}, 422)
    operators.change_password(common.actor_of(request), form)
    update_session_auth_hash(request, form.user)
    messages.success(request, "Your password is changed. Your other sessions have ended.")
    return redirect("account")


@own
@require_POST
def totp_begin(request: HttpRequest) -> HttpResponse:
    """Show the key for the app, with one's password."""
    if (form := _proven(request)) is not None:
        return _show(request, {"begin_form": form}, 422)
    device = second_factor.offered(request.user)
    shown = {"picture": second_factor.picture_of(device), "secret": second_factor.secret_of(device)}
    return _show(request, {**shown, "code_form": CodeForm()})


@own
@require_POST
def totp_confirm(request: HttpRequest) -> HttpResponse:
    """Switch it on, with the app's first code."""
    _by_password_alone(request)
    form = CodeForm(request.POST)
    try:
        if form.is_valid():
            second_factor.confirm(common.actor_of(request), request.user, form.cleaned_data["code"])
            messages.success(request, "From now on a login asks for a code of your app.")
            return redirect("account")
    except OperatorError as problem:
        form.add_error("code", f"{problem.sentence} {problem.fix}")
    device = second_factor.offered(request.user)
    shown = {"picture": second_factor.picture_of(device), "secret": second_factor.secret_of(device)}
    return _show(request, {**shown, "code_form": form}, 422)


@own
@require_POST
def totp_remove(request: HttpRequest) -> HttpResponse:
    """Switch it off, with one's password."""
    if (form := _proven(request)) is not None:
        return _show(request, {"remove_form": form}, 422)
    second_factor.remove(common.actor_of(request), request.user)
    messages.success(request, "Logins ask for no code any more.")
    return redirect("account")


def _by_password_alone(request: HttpRequest) -> None:
    """An account of the identity provider has neither here."""
    if not request.user.has_usable_password():  # type: ignore[union-attr]
        raise PermissionDenied("Your account has no password here: your identity provider keeps it.")


def _proven(request: HttpRequest) -> PasswordForm | None:
    """The form with what is wrong, or None: the password is theirs."""
    _by_password_alone(request)
    form = PasswordForm(request.POST)
    if form.is_valid():
        with hashing():
            right = request.user.check_password(form.cleaned_data["password"])
        if right:
            return None
        form.add_error("password", "That isn't your password.")
        _failed(request)
    return form


def _failed(request: HttpRequest) -> None:
    """A wrong password here counts as one at the login."""
    user_login_failed.send(__name__, credentials={"username": request.user.get_username()}, request=request)


@never_cache
def _show(request: HttpRequest, more: dict[str, Any] | None = None, status: int = 200) -> HttpResponse:
    user = request.user
    context = {
        "by_password": user.has_usable_password(), "has_totp": second_factor.has_one(user),  # type: ignore[union-attr]
        "password_form": OwnPasswordForm(user), "begin_form": PasswordForm(auto_id="begin_%s"),
        "remove_form": PasswordForm(auto_id="remove_%s"), **(more or {}),
    }  # fmt: skip
    return common.page(request, "account.html", context, status)
