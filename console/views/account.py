"""Page of an operator's own account: password and second factor."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.core.exceptions import PermissionDenied
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_POST
from django_otp.plugins.otp_totp.models import TOTPDevice

from broker_core.errors import OperatorError
from console.access.rights import PublicAccess
from console.forms.account import ConfirmPasswordForm, FirstCodeForm, OwnPasswordForm, PasswordAndCodeForm
from console.services import operators, proof, second_factor
from console.services.actors import require_user
from console.views import common

requires_login = common.requires_permission(PublicAccess.OWN_ACCOUNT)
"""Decorator of views that every logged-in account may use."""


@requires_login
@require_GET
def account(request: HttpRequest) -> HttpResponse:
    """Show the account page."""
    return _show(request)


@requires_login
@sensitive_post_parameters()
@require_POST
def password(request: HttpRequest) -> HttpResponse:
    """Change the password, given the old one. The account's other sessions end."""
    _by_password_alone(request)
    name = request.user.get_username()
    proof.refuse_if_locked(request, name)
    form = OwnPasswordForm(request.user, request.POST)
    if not form.is_valid():
        if "old_password" in form.errors:
            proof.count_failure(request, name)
        return _show(request, {"password_form": form}, 422)
    try:
        operators.change_password(common.actor_of(request), form)
    except OperatorError as problem:
        if problem.code != "bad_password":
            raise
        common.refuse_field(form, "old_password", problem)
        return _show(request, {"password_form": form}, 422)
    update_session_auth_hash(request, form.user)
    messages.success(request, "Your password was changed. Your other sessions have ended.")
    return redirect("account")


@requires_login
@sensitive_post_parameters()
@require_POST
def totp_begin(request: HttpRequest) -> HttpResponse:
    """Show a new key for the authenticator app, if the password is right."""
    _by_password_alone(request)
    form = ConfirmPasswordForm(request.POST, auto_id="begin_%s")
    try:
        if form.is_valid():
            proof.prove_password(request, form.cleaned_data["password"])
            device = second_factor.offer_device(request.user)
            signed = proof.sign_device(request, device.pk)
            return _show_key(request, device, FirstCodeForm(initial={"proof": signed}))
    except OperatorError as problem:
        common.refuse_field(form, "password", problem)
    return _show(request, {"begin_form": form}, 422)


@requires_login
@require_POST
def totp_confirm(request: HttpRequest) -> HttpResponse:
    """Enable the second factor with the app's first code.

    The session must have given the password within the last minutes (`proof.PROOF_S`).
    """
    _by_password_alone(request)
    form = FirstCodeForm(request.POST)
    proof.refuse_if_locked(request, request.user.get_username())
    device = second_factor.find_offered(
        request.user, proof.read_device(request, request.POST.get("proof", ""))
    )
    if device is None:
        begin = ConfirmPasswordForm({"password": ""}, auto_id="begin_%s")
        begin.errors["password"] = begin.error_class(
            [f"Enter your password again: a key is valid for {proof.PROOF_S // 60} minutes."]
        )
        return _show(request, {"begin_form": begin}, 422)
    try:
        if form.is_valid():
            with proof.counted_guess(request, request.user.get_username()):
                second_factor.confirm(
                    common.actor_of(request), request.user, device.pk, form.cleaned_data["code"]
                )
            messages.success(request, "Each login now requires a code of your authenticator app.")
            return redirect("account")
    except OperatorError as problem:
        common.refuse_field(form, "code", problem)
    return _show_key(request, device, form, 422)


@requires_login
@sensitive_post_parameters()
@require_POST
def totp_remove(request: HttpRequest) -> HttpResponse:
    """Disable the second factor, given the password and a code of the app."""
    _by_password_alone(request)
    form = PasswordAndCodeForm(request.POST, auto_id="remove_%s")
    if not form.is_valid():
        return _show(request, {"remove_form": form}, 422)
    field = "password"
    try:
        proof.prove_password(request, form.cleaned_data["password"])
        field = "code"
        with proof.counted_guess(request, request.user.get_username()):
            second_factor.check(request.user, form.cleaned_data["code"])
    except OperatorError as problem:
        common.refuse_field(form, field, problem)
        return _show(request, {"remove_form": form}, 422)
    second_factor.remove(common.actor_of(request), request.user)
    messages.success(request, "Logins no longer require a code.")
    return redirect("account")


def _by_password_alone(request: HttpRequest) -> None:
    """Raise PermissionDenied for an account of the identity provider, which has no password here."""
    if not require_user(request).has_usable_password():
        raise PermissionDenied("Your account has no password here: your identity provider manages it.")


def _show_key(request: HttpRequest, device: TOTPDevice, form: Form, status: int = 200) -> HttpResponse:
    """Show a device's key with the form for its first code."""
    shown = {"picture": second_factor.qr_code(device), "secret": second_factor.format_key(device)}
    return _show(request, {**shown, "code_form": form}, status)


@never_cache
def _show(request: HttpRequest, more: dict[str, Any] | None = None, status: int = 200) -> HttpResponse:
    user = require_user(request)
    context = {
        "by_password": user.has_usable_password(),
        "has_totp": second_factor.is_enabled(user),
        "password_form": OwnPasswordForm(user),
        "begin_form": ConfirmPasswordForm(auto_id="begin_%s"),
        "remove_form": PasswordAndCodeForm(auto_id="remove_%s"),
        **(more or {}),
    }
    return common.page(request, "account.html", context, status)
